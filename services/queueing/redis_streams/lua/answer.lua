#!lua flags=allow-oom
-- Sends outcomes to a gateway, and removes their requests. Allowed if memory is short, because
-- it frees memory.
--
-- KEYS[1]    list: the gateway's outcomes
-- KEYS[2..]  streams: of each request to remove, the stream that holds it; none if they may be in
--            another slot of a cluster than the gateway's list
-- ARGV[1]    seconds until outcomes that are not fetched expire
-- ARGV[2]    the consumer group
-- ARGV[3]    number of outcomes
-- ARGV[4..]  each outcome, or the key that stores it; then the id of each request to remove

local seconds, group, outcomes = ARGV[1], ARGV[2], tonumber(ARGV[3])
for i = 4, outcomes + 3 do
    redis.call('RPUSH', KEYS[1], ARGV[i])
end
redis.call('EXPIRE', KEYS[1], seconds)
for i = 2, #KEYS do
    local id = ARGV[2 + outcomes + i]
    redis.call('XACK', KEYS[i], group, id)
    redis.call('XDEL', KEYS[i], id)
end
