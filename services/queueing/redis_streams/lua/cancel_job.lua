#!lua flags=allow-oom
-- Cancels a job that has not finished.
--
-- KEYS[1]  hash: the job
-- KEYS[2]  stream: the jobs of its lane
-- KEYS[3]  stream: due webhook deliveries
-- KEYS[4]  string: its payload, if it is large
-- ARGV[1]  the job's number, in hexadecimal digits
-- ARGV[2]  channel that announces finished jobs
-- ARGV[3]  channel that announces cancelled requests to workers
-- ARGV[4]  its return address
-- Returns  1, or 0 if the job had finished or expired

if redis.call('HGET', KEYS[1], 'state') ~= 'queued' then
    return 0
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'state', 'cancelled', 'finished',
    string.format('%.0f', time[1] * 1000000 + time[2]))
local keeps = redis.call('HGET', KEYS[1], 'keeps')
redis.call('EXPIRE', KEYS[1], keeps)
redis.call('EXPIRE', redis.call('HGET', KEYS[1], 'same'), keeps) -- of the same model: in this slot
redis.call('UNLINK', KEYS[4])
redis.call('XDEL', KEYS[2], redis.call('HGET', KEYS[1], 'entry'))
if redis.call('HGET', KEYS[1], 'webhook') ~= '' then
    redis.call('XADD', KEYS[3], '*', 'job', ARGV[1])
    redis.call('EXPIRE', KEYS[3], keeps)
end
redis.call('PUBLISH', ARGV[2], ARGV[1])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
