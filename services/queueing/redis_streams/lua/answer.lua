#!lua flags=allow-oom
-- Hands outcomes to a gateway, and lets their requests go. Allowed where memory is short: it is
-- what makes room.
--
-- KEYS[1]    list: the gateway's outcomes
-- KEYS[2..]  where the large ones lie, one each; then the streams that requests leave, one each.
--            No streams where these may be in another slot of a cluster than the gateway's list
-- ARGV[1]    seconds after which outcomes that nobody fetches are forgotten
-- ARGV[2]    the consumer group
-- ARGV[3]    how many outcomes go on the list
-- ARGV[4]    how many are large
-- ARGV[5..]  the first; then the large ones; then of each request that leaves, its id

local seconds, group, listed, large = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
for i = 1, large do
    redis.call('SET', KEYS[1 + i], ARGV[4 + listed + i], 'EX', seconds)
end
for i = 5, listed + 4 do
    redis.call('RPUSH', KEYS[1], ARGV[i])
end
redis.call('EXPIRE', KEYS[1], seconds)
for i = 2 + large, #KEYS do
    local id = ARGV[3 + listed + i]
    redis.call('XACK', KEYS[i], group, id)
    redis.call('XDEL', KEYS[i], id)
end
