-- Returns requests that a worker took and has not begun to the other workers.
--
-- KEYS       streams: the lane's requests by priority
-- ARGV[1]    the consumer group
-- ARGV[2]    the consumer that holds returned requests
-- ARGV[3..]  of each request: the number of its stream (1 is KEYS[1]) and its id

for i = 3, #ARGV, 2 do
    redis.call('XCLAIM', KEYS[tonumber(ARGV[i])], ARGV[1], ARGV[2], 0, ARGV[i + 1],
        'IDLE', 3600000, 'JUSTID')
end
