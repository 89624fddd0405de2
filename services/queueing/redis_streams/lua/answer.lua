#!lua flags=allow-oom
-- Hands outcomes to a gateway. Allowed where memory is short: it is what makes room.
--
-- KEYS[1]    list: the gateway's outcomes
-- KEYS[2..]  where the large ones lie, one each
-- ARGV[1]    seconds after which outcomes that nobody fetches are forgotten
-- ARGV[2]    how many outcomes go on the list
-- ARGV[3..]  these; then the large ones

local listed = tonumber(ARGV[2])
for i = 2, #KEYS do
    redis.call('SET', KEYS[i], ARGV[listed + i + 1], 'EX', ARGV[1])
end
for i = 3, listed + 2 do
    redis.call('RPUSH', KEYS[1], ARGV[i])
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
