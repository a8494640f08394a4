-- Prolongs leases; per lease its new end, or 0 for one that is lost.

local ends = {}
batch.begin()
for i, lease in ipairs(request.leases) do
  if entry.held(lease[1], lease[2]) then
    ends[i] = now + request.lease
    -- A heartbeat must not shorten what a handler asked for.
    later('ZADD', K.leases, max(ends[i], tonumber(call('ZSCORE', K.leases, lease[1])) or 0), lease[1])
  else
    ends[i] = 0
  end
end
batch.send()
return { now, ends }
