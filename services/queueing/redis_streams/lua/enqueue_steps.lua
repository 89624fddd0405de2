-- Appends steps of sequences to the streams of the workers that own the sequences.
--
-- KEYS[1]    sorted set: the lane's workers, each with the microsecond until which it counts
-- KEYS[2..]  string of each step: the worker that owns its sequence
-- ARGV[1]    the prefix of the streams of steps; the name of a worker follows it
-- ARGV[2]    the most steps that such a stream may hold
-- ARGV[3]    a random number, which chooses the owners of sequences that begin
-- ARGV[4]    seconds after which a stream without a step is forgotten
-- ARGV[5..]  of each step: '1' for the first step of the sequence, of which one of the living
--            workers becomes the owner; '1' for the last step; seconds after which a sequence
--            without a step has no owner; the microseconds that the step has left; its return
--            address; its payload
-- Returns    for each step its id in the stream, and the owner; or why it has none: 'closed' (no
--            worker serves the lane), 'lost' (the sequence has no owner, or its owner is gone), or
--            'full'

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local names = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf')
local most, chosen = tonumber(ARGV[2]), tonumber(ARGV[3])
local alive, lengths = {}, {}
for _, name in ipairs(names) do
    alive[name] = true
end

local function put(number, first, last, idle, left, address, payload)
    if #names == 0 then
        return 'closed'
    end
    local key, owner = KEYS[number + 1], nil
    if first == '1' then
        owner = names[(chosen + number) % #names + 1]
    else
        owner = redis.call('GET', key)
        if not alive[owner] then
            redis.call('DEL', key)
            return 'lost'
        end
    end
    local stream = ARGV[1] .. owner -- of the same model: in this slot
    local length = lengths[stream] or redis.call('XLEN', stream)
    lengths[stream] = length
    if length >= most then
        return 'full'
    end
    if last == '1' then
        redis.call('DEL', key)
    else
        redis.call('SET', key, owner, 'EX', idle)
    end
    lengths[stream] = length + 1
    local id = redis.call('XADD', stream, '*', 'deadline', string.format('%.0f', now + left),
        'address', address, 'payload', payload)
    return {id, owner}
end

local results = {}
for number = 1, #KEYS - 1 do
    results[number] = put(number, unpack(ARGV, number * 6 - 1, number * 6 + 4))
end
for stream in pairs(lengths) do
    redis.call('EXPIRE', stream, ARGV[4])
end
return results
