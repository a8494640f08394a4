-- Prolongs leases; per lease its new end, or 0 for one that is lost.

local ends = {}
local ids = {}
for i, lease in ipairs(request.leases) do ids[i] = lease[1] end
read_many(ids)
begin_writing()
for i, lease in ipairs(request.leases) do
  if held(lease[1], lease[2]) then
    ends[i] = now + request.lease
    later('ZADD', LEASES, ends[i], lease[1])
  else
    ends[i] = 0
  end
end
send()
return { now, ends }
