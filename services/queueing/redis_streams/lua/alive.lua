#!lua flags=allow-oom
-- Sets a gateway's heartbeat. Allowed if memory is short: a gateway without one loses its requests.
--
-- KEYS[1]  string: there as long as the gateway says so
-- ARGV[1]  seconds until it counts as dead

redis.call('SET', KEYS[1], '', 'EX', ARGV[1])
