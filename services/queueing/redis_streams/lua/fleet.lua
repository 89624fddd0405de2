#!lua flags=allow-oom
-- Returns the workers' announcements, if they have changed.
--
-- KEYS[1]  sorted set: the fleet's workers, each with the microsecond until which it counts
-- KEYS[2]  hash: what each of them serves; its field '' changes with every change
-- ARGV[1]  the last change the caller knows, or ''
-- Returns  how many workers fell silent since anybody last looked; the last change, or '' if there
--          never was one; then, if the caller does not know it, what each worker serves

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
