#!lua flags=allow-oom
-- Says that a gateway lives. Allowed where memory is short: who seems dead loses its requests.
--
-- KEYS[1]  string: there as long as the gateway says so
-- ARGV[1]  seconds until it counts as dead

redis.call('SET', KEYS[1], '', 'EX', ARGV[1])
