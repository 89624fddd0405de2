#!lua flags=allow-oom
-- Announces the versions that a worker serves.
--
-- KEYS[1]  sorted set: the fleet's workers, each with the microsecond until which it counts
-- KEYS[2]  hash: what each of them serves; its field '' changes with every change
-- ARGV[1]  the worker
-- ARGV[2]  microseconds from now until it counts no more; 0 if it leaves
-- ARGV[3]  what it serves

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
