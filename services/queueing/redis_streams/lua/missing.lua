-- Reports the requests that a lane's streams no longer hold.
--
-- KEYS     streams: the lane's requests by priority, or the steps of workers
-- ARGV     of each request: the number of its stream (1 is KEYS[1]) and its id
-- Returns  for each request 1 if it is missing, else 0

local missing = {}
for i = 1, #ARGV, 2 do
    local id = ARGV[i + 1]
    local found = redis.call('XRANGE', KEYS[tonumber(ARGV[i])], id, id)
    missing[#missing + 1] = #found == 0 and 1 or 0
end
return missing
