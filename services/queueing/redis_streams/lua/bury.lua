#!lua flags=allow-oom
-- Moves a request to the dead letters of its lane.
--
-- KEYS[1]  stream: where it is
-- KEYS[2]  stream: the dead letters
-- KEYS[3]  where its payload lies, if it is large: kept as long as a letter may wait
-- ARGV[1]  the consumer group
-- ARGV[2]  its id
-- ARGV[3]  why
-- ARGV[4]  the most dead letters to keep; the oldest go
-- ARGV[5]  seconds a letter may wait
-- Returns  its id among the dead letters, or false if it was gone

local found = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])
if not found[1] then
    return false
end
local id = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'stream', KEYS[1],
    'error', ARGV[3], unpack(found[1][2]))
redis.call('EXPIRE', KEYS[2], ARGV[5])
if KEYS[3] then
    redis.call('EXPIRE', KEYS[3], ARGV[5])
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return id
