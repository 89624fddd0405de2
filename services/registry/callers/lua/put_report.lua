-- Keeps what a gateway has seen of a model's callers, and drops what is too old or too much.
--
-- KEYS[1]  sorted set: gateways by the second of their report
-- KEYS[2]  hash: report of each gateway
-- ARGV[1]  name of the gateway
-- ARGV[2]  its report
-- ARGV[3]  seconds for which a report is kept
-- ARGV[4]  reports that are kept at most

local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
local function drop(names)
    for _, name in ipairs(names) do
        redis.call('ZREM', KEYS[1], name)
        redis.call('HDEL', KEYS[2], name)
    end
end
drop(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. (now - ARGV[3]), 'LIMIT', 0, 100))
local over = redis.call('ZCARD', KEYS[1]) - ARGV[4]
if over > 0 then
    drop(redis.call('ZRANGE', KEYS[1], 0, math.min(over, 100) - 1))
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[3])
