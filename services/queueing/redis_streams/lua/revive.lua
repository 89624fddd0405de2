-- Moves a dead letter back to its former stream, as if it had never run.
--
-- KEYS[1]  stream: the dead letters
-- KEYS[2]  stream: held the request before
-- KEYS[3]  hash: the job, if the letter is one
-- ARGV[1]  its id among the dead letters
-- ARGV[2]  microseconds to its new deadline
-- ARGV[3]  its return address
-- ARGV[4]  its payload
-- Returns  1, or 0 if there is no such letter

if redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then
    return 0
end
local time = redis.call('TIME')
local deadline = string.format('%.0f', time[1] * 1000000 + time[2] + ARGV[2])
local entry = redis.call('XADD', KEYS[2], '*', 'deadline', deadline, 'address', ARGV[3],
    'payload', ARGV[4])
if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 1 then
    local lives = math.ceil(ARGV[2] / 1000000) + redis.call('HGET', KEYS[3], 'keeps')
    redis.call('HDEL', KEYS[3], 'outcome', 'finished')
    redis.call('HSET', KEYS[3], 'state', 'queued', 'deadline', deadline, 'entry', entry)
    redis.call('EXPIRE', KEYS[3], lives)
    redis.call('EXPIRE', redis.call('HGET', KEYS[3], 'same'), lives) -- of the same model
end
return 1
