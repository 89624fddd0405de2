#!lua flags=allow-oom
-- Announces the versions that a worker serves.
--
-- KEYS[1]  sorted set: the fleet's workers, by the microsecond at which they expire
-- KEYS[2]  hash: announcement of each worker; the field '' is the microsecond of the last change
-- ARGV[1]  id of the worker
-- ARGV[2]  microseconds until the announcement expires; 0 if the worker leaves
-- ARGV[3]  the announcement

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if ARGV[2] == '0' then
    redis.call('ZREM', KEYS[1], ARGV[1])
    redis.call('HDEL', KEYS[2], ARGV[1])
    redis.call('HSET', KEYS[2], '', string.format('%.0f', now))
    return
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[3] then
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[3], '', string.format('%.0f', now))
end
