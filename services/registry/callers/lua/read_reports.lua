-- Reads what gateways have seen of a model's callers, of those alone that are named and sized like
-- gateways' reports, the newest first.
--
-- KEYS[1]  sorted set: gateways by the second of their report
-- KEYS[2]  hash: report of each gateway
-- ARGV[1]  reports that are read at most
-- ARGV[2]  seconds after which a report is too old
-- ARGV[3]  bytes of one report at most
-- ARGV[4]  bytes of all reports at most
-- Returns  name, age in seconds and report in turn, empty for one that is too large

local now, found, bytes = tonumber(redis.call('TIME')[1]), {}, 0
local newest = redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
for i = 1, #newest, 2 do
    local name, age = newest[i], math.max(now - newest[i + 1], 0)
    if #name <= 200 and string.find(name, '^gateway%-[%w._%-]+$') and age <= tonumber(ARGV[2]) then
        local size = redis.call('HSTRLEN', KEYS[2], name)
        local report = ''
        if size <= tonumber(ARGV[3]) and bytes + size <= tonumber(ARGV[4]) then
            bytes = bytes + size
            report = redis.call('HGET', KEYS[2], name) or ''
        end
        found[#found + 1] = name
        found[#found + 1] = age
        found[#found + 1] = report
    end
end
return found
