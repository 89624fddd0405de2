-- Forgets a model that no worker knows, unless it was loaded again.
--
-- KEYS[1]  hash: revision of each model's load; the field '' is the newest revision
-- ARGV[1]  the model
-- ARGV[2]  revision of its load

if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    redis.call('HDEL', KEYS[1], ARGV[1])
end
