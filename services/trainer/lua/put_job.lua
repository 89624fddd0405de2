#!lua flags=allow-oom
-- Replaces a job's preceding revision, or creates a new job, and appends events.
--
-- KEYS[1]  hash: the job
-- KEYS[2]  stream: its events, with the sequence number as the first part of each id
-- KEYS[3]  sorted set: all jobs by creation time
-- KEYS[4]  sorted set: the jobs in its previous state, in the same order; equal to KEYS[5] if new
-- KEYS[5]  sorted set: the jobs in its new state
-- ARGV[1]  the job's id
-- ARGV[2]  its revision
-- ARGV[3]  its state
-- ARGV[4]  the secret of its lease
-- ARGV[5]  its creation time
-- ARGV[6]  the job
-- ARGV[7]  maximum number of events to keep
-- ARGV[8]  channel that announces changes by job id
-- ARGV[9]  a second name to announce on it, or ''
-- ARGV[10] and on: the events
-- Returns  1, or 0 if the stored revision is another one

local found = redis.call('HGET', KEYS[1], 'revision')
if found then
    if tonumber(found) ~= tonumber(ARGV[2]) - 1 then
        return 0
    end
elseif tonumber(ARGV[2]) ~= 0 then
    return 0
end
redis.call('HSET', KEYS[1], 'revision', ARGV[2], 'state', ARGV[3], 'holder', ARGV[4],
    'document', ARGV[6])
redis.call('ZADD', KEYS[3], ARGV[5], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
redis.call('ZADD', KEYS[5], ARGV[5], ARGV[1])
for n = 10, #ARGV do
    local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
    redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[7], seq .. '-0', 'event', ARGV[n])
end
redis.call('PUBLISH', ARGV[8], ARGV[1])
if ARGV[9] ~= '' then
    redis.call('PUBLISH', ARGV[8], ARGV[9])
end
return 1
