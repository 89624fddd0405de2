#!lua flags=allow-oom
-- Stores the models that a worker knows, if Redis has none or older ones.
--
-- KEYS[1]  hash: revision of each model's load; the field '' is the newest revision
-- ARGV[1]  the newest revision that the worker knows
-- ARGV[2]  seconds until the hash expires
-- ARGV[3]  a model, then the revision of its load; and so on

if tonumber(redis.call('HGET', KEYS[1], '') or '0') < tonumber(ARGV[1]) then
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[1], '', ARGV[1])
    for i = 3, #ARGV, 2 do
        redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    end
    redis.call('EXPIRE', KEYS[1], ARGV[2])
end
