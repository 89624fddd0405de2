#!lua flags=allow-oom
-- Renews a worker's lane and the requests that it holds, and claims abandoned requests.
--
-- KEYS[1]    sorted set: the lane's workers, by the microsecond at which they expire
-- KEYS[2..]  streams: the lane's requests by priority; created with their group if missing
-- ARGV[1]    the consumer group
-- ARGV[2]    id of the worker
-- ARGV[3]    microseconds until it counts as dead; 0 if it is leaving
-- ARGV[4]    milliseconds after which a request that no worker has renewed is abandoned
-- ARGV[5]    the consumer that holds returned requests
-- ARGV[6]    maximum number of requests to claim
-- ARGV[7]    maximum number of suspects among them: their worker died while it held them
-- ARGV[8]    seconds until a lane without workers expires
-- ARGV[9..]  of each request the worker holds: the number of its stream (1 is KEYS[2]) and its id
-- Returns    the present microsecond; the number of requests in the streams, and of those that
--            workers hold; the id of the oldest, or ''; then of each claimed request: the number of
--            its stream, its id, its fields, and 0 (not suspected), 1 (a suspect), or 2 (it was a
--            suspect, and its worker died again: it must not run)
--
-- The delivery count of an entry is one more than the number of workers it may have crashed.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local group, worker = ARGV[1], ARGV[2]
local idle, handed_back = tonumber(ARGV[4]), ARGV[5]
local room, suspects = tonumber(ARGV[6]), tonumber(ARGV[7])

for i = 2, #KEYS do
    redis.pcall('XGROUP', 'CREATE', KEYS[i], group, '0', 'MKSTREAM')
    redis.call('EXPIRE', KEYS[i], ARGV[8])
end
if ARGV[3] ~= '0' then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[3]), worker)
    redis.call('EXPIRE', KEYS[1], ARGV[8])
end
for i = 9, #ARGV, 2 do
    redis.call('XCLAIM', KEYS[ARGV[i] + 1], group, worker, 0, ARGV[i + 1], 'JUSTID')
end

-- Remove workers that have been gone for long and hold no requests.
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf',
    string.format('%.0f', now - 60000000))) do
    local left = 0
    for i = 2, #KEYS do
        if #redis.call('XPENDING', KEYS[i], group, '-', '+', 1, gone) > 0 then
            left = left + 1
        else
            redis.call('XGROUP', 'DELCONSUMER', KEYS[i], group, gone)
        end
    end
    if left == 0 then
        redis.call('ZREM', KEYS[1], gone)
    end
end

local function is_alive(name)
    local until_us = redis.call('ZSCORE', KEYS[1], name)
    return until_us and tonumber(until_us) > now
end

local over = {}
local function take_over(number, stream, id, owner, deaths)
    local died = owner ~= handed_back and not is_alive(owner)
    if died then
        deaths = deaths + 1
    end
    -- Its owner may hold it only because our reply to that owner was lost: a former
    -- suspect stays one.
    local kind = deaths >= 3 and 2 or (deaths == 2 and 1 or 0)
    if kind == 1 then
        if suspects <= 0 then
            return
        end
        suspects = suspects - 1
    end
    local claimed = redis.call('XCLAIM', stream, group, worker, idle, id, 'RETRYCOUNT', deaths)
    if claimed[1] then
        room = room - 1
        over[#over + 1] = {number, id, claimed[1][2], kind}
    end
end

local held, pending, oldest = 0, 0, ''
for i = 2, #KEYS do
    local length = redis.call('XLEN', KEYS[i])
    if length > 0 then
        held = held + length
        pending = pending + redis.call('XPENDING', KEYS[i], group)[1]
        local first = redis.call('XRANGE', KEYS[i], '-', '+', 'COUNT', 1)[1][1]
        if oldest == '' or tonumber(first:match('^%d+')) < tonumber(oldest:match('^%d+')) then
            oldest = first
        end
        if room > 0 then
            for _, left in ipairs(redis.call('XPENDING', KEYS[i], group, 'IDLE', idle, '-', '+',
                room)) do
                take_over(i - 1, KEYS[i], left[1], left[2], left[4])
            end
        end
    end
end
return {string.format('%.0f', now), held, pending, oldest, unpack(over)}
