-- Reads the counts of gateways, of those alone that are named and sized like ones.
--
-- KEYS[1]  hash: counts of a rollout, an arm or a shadow by gateway
-- ARGV[1]  gateways that are read at most
-- ARGV[2]  bytes of one gateway's counts at most
-- ARGV[3]  bytes of all counts at most
-- Returns  names and counts in turn; names and reasons in turn of those left out

local found, left_out, bytes = {}, {}, 0
local function leave_out(name, reason)
    if #left_out < 200 then
        left_out[#left_out + 1] = string.sub(name, 1, 60)
        left_out[#left_out + 1] = reason
    end
end

local fields = redis.call('HLEN', KEYS[1])
if fields > tonumber(ARGV[1]) then
    leave_out('', fields .. ' gateways; at most ' .. ARGV[1] .. ' are read, so none is')
    return {found, left_out}
end
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    local size = redis.call('HSTRLEN', KEYS[1], name)
    if #name > 200 or not string.find(name, '^gateway%-[%w._%-]+$') then
        leave_out(name, 'its name is none of a gateway: ' .. string.sub(name, 1, 60))
    elseif size > tonumber(ARGV[2]) then
        leave_out(name, name .. ' has ' .. size .. ' bytes; at most ' .. ARGV[2] .. ' are read')
    elseif bytes + size > tonumber(ARGV[3]) then
        leave_out(name, name .. ' exceeds the ' .. ARGV[3] .. ' bytes that are read of all')
    else
        bytes = bytes + size
        found[#found + 1] = name
        found[#found + 1] = redis.call('HGET', KEYS[1], name)
    end
end
return {found, left_out}
