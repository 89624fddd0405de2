#!lua flags=allow-oom
-- Loads or unloads models.
--
-- KEYS[1]  hash: revision of each model's load; the field '' is the newest revision
-- ARGV[1]  `load` or `unload`
-- ARGV[2]  models that may be loaded at most
-- ARGV[3]  a model, and so on
-- Returns  the revision of the act; '' if no worker has told of any models, or 'full'

local head = redis.call('HGET', KEYS[1], '')
if not head then
    return ''
end
local time = redis.call('TIME')
local revision = string.format('%.0f', math.max(time[1] * 1000000 + time[2], head + 1))
for i = 3, #ARGV do
    if ARGV[1] == 'unload' then
        redis.call('HDEL', KEYS[1], ARGV[i])
    elseif redis.call('HLEN', KEYS[1]) <= tonumber(ARGV[2])
            or redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
        redis.call('HSET', KEYS[1], ARGV[i], revision)
    else
        return 'full'
    end
end
redis.call('HSET', KEYS[1], '', revision)
return revision
