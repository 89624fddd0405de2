-- Canned requests, one after the other and round again, and the figures as one line of JSON.
-- Argument after `--`: a file of whole HTTP requests, each behind a line with its length in bytes.

local requests = {}
local last = 0

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  for length in function() return file:read("*l") end do
    requests[#requests + 1] = file:read(tonumber(length))
  end
  file:close()
end

function request()
  last = last % #requests + 1
  return requests[last]
end

-- All durations in microseconds. A status of 400 or more counts as an error.
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'figures {"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, ' ..
    '"bad_status": %d, "broken": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
