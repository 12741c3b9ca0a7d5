-- SPDX-License-Identifier: Apache-2.0
-- wrk: prioritize requests of a few hundred pods in turn, each in a new version, so that none is answered from memory.
-- Arguments: a file that holds the request with @ where the number of the pod stands and # for that of the request.

local parts, pods, count = {}, 200, 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local text = file:read("*a")
  file:close()
  for part, mark in text:gmatch("([^@#]*)([@#]?)") do
    table.insert(parts, part)
    if mark ~= "" then table.insert(parts, mark) end
  end
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
end

function request()
  count = count + 1
  local filled = {}
  for i, part in ipairs(parts) do
    if part == "@" then part = count % pods elseif part == "#" then part = count end
    filled[i] = part
  end
  return wrk.format(nil, "/prioritize", nil, table.concat(filled))
end

function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('{"requests": %d, "microseconds": %d, "failed": %d, "p50": %d, "p99": %d, "max": %d}\n',
    summary.requests, summary.duration, failed, latency:percentile(50), latency:percentile(99), latency.max))
end
