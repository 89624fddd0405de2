#!lua flags=allow-oom
-- Sends outcomes to a gateway, and removes their requests. Allowed if memory is short, because
-- it frees memory.
--
-- KEYS[1]    list: the gateway's outcomes
-- KEYS[2..]  streams that hold requests to remove; none if they may be in another slot of a cluster
--            than the gateway's list
-- ARGV[1]    seconds until outcomes that are not fetched expire
-- ARGV[2]    the consumer group
-- ARGV[3]    number of outcomes
-- ARGV[4..]  each outcome, or the key that stores it; then of each stream the number of its
--            requests to remove, and their ids

redis.call('RPUSH', KEYS[1], unpack(ARGV, 4, ARGV[3] + 3))
redis.call('EXPIRE', KEYS[1], ARGV[1])
local at = ARGV[3] + 4
for i = 2, #KEYS do
    local last = at + ARGV[at]
    redis.call('XACK', KEYS[i], ARGV[2], unpack(ARGV, at + 1, last))
    redis.call('XDEL', KEYS[i], unpack(ARGV, at + 1, last))
    at = last + 1
end
