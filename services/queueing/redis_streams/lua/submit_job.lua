-- Submits a job, unless it was submitted before.
--
-- KEYS[1]  hash: the job
-- KEYS[2]  string: the job that was submitted with the idempotency key
-- KEYS[3]  stream: the jobs of the lane
-- KEYS[4]  sorted set: the model's jobs, by the microsecond of their creation
-- ARGV[1]  the job's number, in hexadecimal digits
-- ARGV[2]  digest of the request
-- ARGV[3]  microseconds to its deadline
-- ARGV[4]  return address
-- ARGV[5]  payload
-- ARGV[6]  URL of the webhook, or ''
-- ARGV[7]  version of the model, followed by '@' and an artifact's name if one is named
-- ARGV[8]  seconds until its result expires
-- ARGV[9]  maximum number of jobs that wait in the lane
-- ARGV[10] maximum number of listed jobs of the model
-- Returns  the outcome, and the number of the job: 'new'; 'same' (it was submitted before);
--          'conflict' (the key belongs to a different request); 'full'

local known = redis.call('GET', KEYS[2])
if known then
    local number, digest = known:match('^(%S+) (%S+)$')
    return {digest == ARGV[2] and 'same' or 'conflict', number}
end
if redis.call('XLEN', KEYS[3]) >= tonumber(ARGV[9]) then
    return {'full', ARGV[1]}
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local deadline = string.format('%.0f', now + ARGV[3])
local lives = math.ceil(ARGV[3] / 1000000) + ARGV[8]
local entry = redis.call('XADD', KEYS[3], '*', 'deadline', deadline, 'address', ARGV[4],
    'payload', ARGV[5])
redis.call('HSET', KEYS[1], 'state', 'queued', 'version', ARGV[7], 'created',
    string.format('%.0f', now), 'deadline', deadline, 'entry', entry, 'webhook', ARGV[6],
    'keeps', ARGV[8], 'same', KEYS[2])
redis.call('EXPIRE', KEYS[1], lives)
redis.call('SET', KEYS[2], ARGV[1] .. ' ' .. ARGV[2], 'EX', lives)
redis.call('ZADD', KEYS[4], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -1 - ARGV[10])
if redis.call('TTL', KEYS[4]) < lives then
    redis.call('EXPIRE', KEYS[4], lives)
end
return {'new', ARGV[1]}
