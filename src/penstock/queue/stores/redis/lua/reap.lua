-- One round of the reaper; the limit holds for each kind of find.

local NODES = P .. 'nodes'
local RAN_OUT = 'lease ran out'
local found = { {}, {}, {}, {}, {} }
local reaped, dead, expired, released, late = unpack(found)

local function tell(list, e)
  list[#list + 1] = e[ID]
  list[#list + 1] = e[QUEUE]
end

-- A lease on an entry that was deleted by hand: the FIFO queue that waits for its end is let go.
local function forget_lease(id)
  later('ZREM', LEASES, id)
  for _, name in ipairs(call('HKEYS', QUEUES)) do
    local q = queue(name)
    if q.held == id then
      q.held = nil
      stale[name] = true
      look(name, '')
      rings = true
    end
  end
end

local function reap_leases()
  for _, id in ipairs(call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, request.limit)) do
    local e = read(id)
    if not (e and e[NONCE]) then
      forget_lease(id)
    elseif e[MOST] and e[ATTEMPT] >= e[MOST] then
      finish(e, 'dead', RAN_OUT)
      tell(dead, e)
    else
      record(e, 'reaped', RAN_OUT)
      local new = given_back(e)
      new[DUE], new[ERROR], new[SUSPECT] = now, RAN_OUT, true
      change(id, new)
      tell(reaped, e)
    end
  end
  flush()
end

local function end_expired()
  for _, id in ipairs(call('ZRANGEBYSCORE', EXPIRIES, '-inf', now, 'LIMIT', 0, request.limit)) do
    local e = read(id)
    if e and not e[NONCE] then
      finish(e, 'expired')
      tell(expired, e)
    else
      later('ZREM', EXPIRIES, id)
    end
  end
  flush()
end

local function free_sticky()
  for _, home in ipairs(call('SMEMBERS', HOMES)) do
    local heard = tonumber(call('HGET', NODES, home))
    if home == request.node or not heard or now - heard >= request.sticky then
      local ids = call('ZRANGEBYSCORE', STICKY .. home, '-inf', now - request.sticky, 'LIMIT', 0, request.limit)
      for _, id in ipairs(ids) do
        local e = read(id)
        if not e then
          later('ZREM', STICKY .. home, id)
        elseif home == request.node then
          tell(late, e)
        else
          local new = copy(e)
          new[NODE] = false
          change(id, new)
          tell(released, e)
        end
      end
    end
    if call('EXISTS', STICKY .. home) == 0 then later('SREM', HOMES, home) end
  end
  flush()
end

local function sweep_periods()
  local scopes = call('ZRANGEBYSCORE', PERIODS, '-inf', now, 'LIMIT', 0, request.limit)
  chunks('HDEL', HOLDS, scopes)
  chunks('ZREM', PERIODS, scopes)
end

begin_writing()
reap_leases()
end_expired()
free_sticky()
sweep_periods()
ring()
return remember({ now, found })
