-- Appends a step of a sequence to the stream of the worker that owns the sequence.
--
-- KEYS[1]   sorted set: the lane's workers, each with the microsecond until which it counts
-- KEYS[2]   string: the worker that owns the sequence
-- ARGV[1]   the prefix of the streams of steps; the name of a worker follows it
-- ARGV[2]   the most steps that such a stream may hold
-- ARGV[3]   '1' for the first step of the sequence: one of the living workers becomes its owner
-- ARGV[4]   '1' for the last step
-- ARGV[5]   a random number, which chooses the owner
-- ARGV[6]   seconds after which a sequence without a step has no owner
-- ARGV[7]   seconds after which a stream without a step is forgotten
-- ARGV[8]   microseconds that the step has left
-- ARGV[9]   its return address
-- ARGV[10]  its payload
-- Returns   its id in the stream, and the owner; or why it has none: 'closed' (no worker serves the
--           lane), 'lost' (the sequence has no owner, or its owner is gone), or 'full'

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local alive = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf')
if #alive == 0 then
    return {'closed'}
end
local owner = redis.call('GET', KEYS[2])
if ARGV[3] == '1' then
    owner = alive[ARGV[5] % #alive + 1]
else
    local counts_until = owner and redis.call('ZSCORE', KEYS[1], owner)
    if not counts_until or tonumber(counts_until) <= now then
        redis.call('DEL', KEYS[2])
        return {'lost'}
    end
end
local stream = ARGV[1] .. owner -- of the same model: in this slot
if redis.call('XLEN', stream) >= tonumber(ARGV[2]) then
    return {'full'}
end
if ARGV[4] == '1' then
    redis.call('DEL', KEYS[2])
else
    redis.call('SET', KEYS[2], owner, 'EX', ARGV[6])
end
local id = redis.call('XADD', stream, '*', 'deadline', string.format('%.0f', now + ARGV[8]),
    'address', ARGV[9], 'payload', ARGV[10])
redis.call('EXPIRE', stream, ARGV[7])
return {id, owner}
