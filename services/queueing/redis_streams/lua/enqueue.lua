-- Appends requests to a lane's streams, up to its limit.
--
-- KEYS[1]    sorted set: the lane's workers, by the microsecond at which they expire
-- KEYS[2..]  streams: the lane's requests by priority, the highest first
-- ARGV[1]    maximum number of requests in all streams together
-- ARGV[2]    microseconds by which each request delays the next one; 0 if unknown
-- ARGV[3..]  of each request: the number of its stream (1 is KEYS[2]), the microseconds to
--            its deadline, its return address, its payload, and 1 if it was accepted before and
--            must not be refused, else 0
-- Returns    for each request its id in the stream, or the reason of its refusal: 'closed' (no
--            worker serves the lane), 'full', or 'late' (its deadline would pass in the queue)
--
-- A deadline is a microsecond of Redis' own clock: other machines need not agree on the time.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local open = #redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf',
    'LIMIT', 0, 1) > 0
local lengths, held = {}, 0
for i = 2, #KEYS do
    lengths[i - 1] = redis.call('XLEN', KEYS[i])
    held = held + lengths[i - 1]
end
local most, delay = tonumber(ARGV[1]), tonumber(ARGV[2])

local function put(number, left, address, payload, accepted)
    if not open and not accepted then
        return 'closed'
    end
    if held >= most and not accepted then
        return 'full'
    end
    local before = 0
    for i = 1, number do
        before = before + lengths[i]
    end
    if before * delay > left and not accepted then
        return 'late'
    end
    held, lengths[number] = held + 1, lengths[number] + 1
    return redis.call('XADD', KEYS[number + 1], '*', 'deadline',
        string.format('%.0f', now + left), 'address', address, 'payload', payload)
end

local results = {}
for i = 3, #ARGV, 5 do
    results[#results + 1] = put(tonumber(ARGV[i]), tonumber(ARGV[i + 1]), ARGV[i + 2],
        ARGV[i + 3], ARGV[i + 4] == '1')
end
return results
