#!lua flags=allow-oom
-- Takes from a bucket the tokens that a gateway has spent; returns the rest, below 0 if in debt.
--
-- KEYS[1]  hash: `tokens`, and `at`, the time of that count in microseconds of Redis' clock;
--          expires once the bucket is full again
-- ARGV[1]  tokens refilled per second
-- ARGV[2]  capacity of the bucket
-- ARGV[3]  tokens that were spent

local rate, burst, spent = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local kept = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(kept[1] or burst)
local at = tonumber(kept[2] or now)

tokens = math.min(burst, tokens + math.max(0, now - at) * rate / 1000000) - spent
local text = string.format('%.6f', tokens)
redis.call('HSET', KEYS[1], 'tokens', text, 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens) / rate * 1000) + 1000)
return text
