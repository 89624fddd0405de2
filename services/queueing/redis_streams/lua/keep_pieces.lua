#!lua flags=allow-oom
-- Appends pieces of a large outcome to those stored. Allowed if memory is short: its
-- request is removed once it is complete.
--
-- KEYS[1]    list: the outcome's pieces
-- ARGV[1]    milliseconds until they expire
-- ARGV[2..]  the pieces

redis.call('RPUSH', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
