#!lua flags=allow-oom
-- Stores the first outcome of a job, and removes it from its stream.
--
-- KEYS[1]  hash: the job
-- KEYS[2]  stream: due webhook deliveries
-- KEYS[3]  stream: waiting and running jobs
-- KEYS[4]  the payload, if it is large
-- KEYS[5]  the outcome, if it is large
-- ARGV[1]  the job's number, in hexadecimal digits
-- ARGV[2]  its new state: 'done', 'failed' or 'expired'
-- ARGV[3]  the outcome, or KEYS[5] as the queue writes it
-- ARGV[4]  channel that announces finished jobs
-- ARGV[5]  the consumer group
-- ARGV[6]  the job's id in KEYS[3]
-- Returns  1, or 0 if the job had finished or expired

redis.call('XACK', KEYS[3], ARGV[5], ARGV[6])
redis.call('XDEL', KEYS[3], ARGV[6])
redis.call('UNLINK', KEYS[4])
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'queued' then
    if KEYS[5] then
        redis.call('UNLINK', KEYS[5])
    end
    return 0
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'outcome', ARGV[3], 'finished',
    string.format('%.0f', time[1] * 1000000 + time[2]))
local keeps = redis.call('HGET', KEYS[1], 'keeps')
redis.call('EXPIRE', KEYS[1], keeps)
if KEYS[5] then
    redis.call('EXPIRE', KEYS[5], keeps)
end
redis.call('EXPIRE', redis.call('HGET', KEYS[1], 'same'), keeps) -- of the same model: in this slot
if redis.call('HGET', KEYS[1], 'webhook') ~= '' then
    redis.call('XADD', KEYS[2], '*', 'job', ARGV[1])
    redis.call('EXPIRE', KEYS[2], keeps)
end
redis.call('PUBLISH', ARGV[4], ARGV[1])
return 1
