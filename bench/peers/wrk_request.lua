-- One canned POST, and the figures as one line of JSON.
-- Arguments after `--`: the file with the body, then "Name: value" headers.

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  for i = 2, #arguments do
    local name, value = arguments[i]:match("^([^:]+): (.*)$")
    wrk.headers[name] = value
  end
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
