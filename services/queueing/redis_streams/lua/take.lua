-- Assigns a worker the requests that have waited longest, stream by stream.
--
-- KEYS     streams of a lane, in the order in which they are read
-- ARGV[1]  the consumer group
-- ARGV[2]  id of the worker
-- ARGV[3]  maximum number of requests
-- Returns  the present microsecond of Redis' clock; then of each stream with any: its number
--          (1 is KEYS[1]) and its entries

local time = redis.call('TIME')
local taken = {string.format('%.0f', time[1] * 1000000 + time[2])}
local room = tonumber(ARGV[3])
for number, stream in ipairs(KEYS) do
    if room <= 0 then
        break
    end
    -- Most are empty, which is cheaper to check first.
    local found = redis.call('XLEN', stream) > 0 and redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', room,
        'STREAMS', stream, '>')
    if found then
        room = room - #found[1][2]
        taken[#taken + 1] = {number, found[1][2]}
    end
end
return taken
