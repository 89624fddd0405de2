#!lua flags=allow-oom
-- Moves a request to the dead letters of its lane.
--
-- KEYS[1]  stream: holds the request
-- KEYS[2]  stream: the dead letters
-- KEYS[3]  the payload, if it is large; its expiry is set to that of the letter
-- ARGV[1]  the consumer group
-- ARGV[2]  id of the request in KEYS[1]
-- ARGV[3]  the reason
-- ARGV[4]  maximum number of dead letters; the oldest are deleted
-- ARGV[5]  seconds until a letter expires
-- ARGV[6]  its payload, in place of the one in KEYS[1]
-- Returns  its id among the dead letters, or false if the request is not in KEYS[1]

local found = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])
if not found[1] then
    return false
end
local fields = found[1][2]
for i = 1, #fields, 2 do
    if fields[i] == 'payload' then
        fields[i + 1] = ARGV[6]
    end
end
local id = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'stream', KEYS[1],
    'error', ARGV[3], unpack(fields))
redis.call('EXPIRE', KEYS[2], ARGV[5])
if KEYS[3] then
    redis.call('EXPIRE', KEYS[3], ARGV[5])
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return id
