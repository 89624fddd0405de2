#!lua flags=allow-oom
-- Sets a gateway's heartbeat. Allowed if memory is short: a gateway without one loses its requests.
--
-- KEYS[1]  string: the heartbeat, which expires
-- ARGV[1]  seconds until the gateway counts as dead

redis.call('SET', KEYS[1], '', 'EX', ARGV[1])
