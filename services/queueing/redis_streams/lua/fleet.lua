#!lua flags=allow-oom
-- Returns the workers' announcements, if they have changed.
--
-- KEYS[1]  sorted set: the fleet's workers, by the microsecond at which they expire
-- KEYS[2]  hash: announcement of each worker; the field '' is the microsecond of the last change
-- ARGV[1]  the last change known to the caller, or ''
-- Returns  the number of workers that expired since the last call of any process; the last change,
--          or '' if there is none; then, if it is new to the caller, the announcements

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local silent = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
for _, gone in ipairs(silent) do
    redis.call('ZREM', KEYS[1], gone)
    redis.call('HDEL', KEYS[2], gone)
    redis.call('HSET', KEYS[2], '', now)
end
local change = redis.call('HGET', KEYS[2], '') or ''
if change == ARGV[1] then
    return {#silent, change}
end
local result = {#silent, change}
for _, worker in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    result[#result + 1] = redis.call('HGET', KEYS[2], worker)
end
return result
