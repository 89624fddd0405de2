#!lua flags=allow-oom
-- Removes a worker from a lane; also the lane, if no worker and no request remains.
--
-- KEYS[1]    sorted set: the lane's workers, by the microsecond at which they expire
-- KEYS[2..]  streams: the lane's requests by priority
-- ARGV[1]    id of the worker
-- Returns    the workers that remain, and the requests in the streams

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('ZADD', KEYS[1], 'XX', now, ARGV[1])
local others = redis.call('ZCOUNT', KEYS[1], '(' .. now, '+inf')
local held = 0
for i = 2, #KEYS do
    held = held + redis.call('XLEN', KEYS[i])
end
if others == 0 and held == 0 then
    redis.call('DEL', unpack(KEYS))
end
return {others, held}
