#!lua flags=allow-oom
-- Appends events of a job's worker, if it still holds the job.
--
-- KEYS[1]  hash: the job
-- KEYS[2]  stream: its events
-- ARGV[1]  the job's id
-- ARGV[2]  the secret of the worker's lease
-- ARGV[3]  maximum number of events to keep
-- ARGV[4]  channel that announces changes by job id
-- ARGV[5] and on: the events
-- Returns  1, or 0 if the worker does not hold the job

local found = redis.call('HMGET', KEYS[1], 'state', 'holder')
if found[1] ~= 'running' or found[2] ~= ARGV[2] then
    return 0
end
for n = 5, #ARGV do
    local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
    redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[3], seq .. '-0', 'event', ARGV[n])
end
redis.call('PUBLISH', ARGV[4], ARGV[1])
return 1
