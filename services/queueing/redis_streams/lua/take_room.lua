#!lua flags=allow-oom
-- Reserves space for a large outcome among those that a gateway has not fetched.
--
-- KEYS[1]  sorted set: keys of the unfetched outcomes, by their bytes
-- KEYS[2]  list: pieces of the outcome; an empty piece marks the reservation
-- ARGV[1]  bytes of the outcome
-- ARGV[2]  maximum bytes of all together; a larger outcome is stored alone
-- ARGV[3]  seconds until they expire
-- Returns  1, or 0 if there is no space at present

local size, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local kept, total = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), 0
for i = 2, #kept, 2 do
    total = total + kept[i]
end
if total > 0 and total + size > most then
    for i = 1, #kept, 2 do -- those that are gone, as of a worker that died
        if redis.call('EXISTS', kept[i]) == 0 then
            redis.call('ZREM', KEYS[1], kept[i])
            total = total - kept[i + 1]
        end
    end
    if total > 0 and total + size > most then
        return 0
    end
end
redis.call('ZADD', KEYS[1], size, KEYS[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('RPUSH', KEYS[2], '')
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 1
