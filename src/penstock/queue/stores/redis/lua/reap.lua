-- One round of the reaper; the limit holds for each kind of find.

local RAN_OUT = 'lease ran out'
local found = { {}, {}, {}, {}, {} }
local reaped, dead, expired, released, late = unpack(found)

local function tell(list, e)
  list[#list + 1] = e[ID]
  list[#list + 1] = e[QUEUE]
end

-- A lease on an entry that was deleted by hand: the FIFO queue that waits for its end is let go.
local function forget_lease(id)
  later('ZREM', K.leases, id)
  for _, name in ipairs(call('HKEYS', K.queues)) do
    local q = queue.read(name)
    if q.held == id then
      q.held = nil
      queue.stale[name] = true
      queue.look(name, '')
      work.rings = true
    end
  end
end

local function reap_leases()
  for _, id in ipairs(call('ZRANGEBYSCORE', K.leases, '-inf', now, 'LIMIT', 0, request.limit)) do
    local e = entry.read(id)
    if not (e and e[NONCE]) then
      forget_lease(id)
    elseif e[MOST] and e[ATTEMPT] >= e[MOST] then
      ended.finish(e, 'dead', RAN_OUT)
      tell(dead, e)
    else
      ended.record(e, 'reaped', RAN_OUT)
      local new = entry.given_back(e)
      new[DUE], new[ERROR], new[SUSPECT] = now, RAN_OUT, true
      entry.change(id, new)
      tell(reaped, e)
    end
  end
  flush()
end

local function end_expired()
  for _, id in ipairs(call('ZRANGEBYSCORE', K.expiries, '-inf', now, 'LIMIT', 0, request.limit)) do
    local e = entry.read(id)
    if e and not e[NONCE] then
      ended.finish(e, 'expired')
      tell(expired, e)
    else
      later('ZREM', K.expiries, id)
    end
  end
  flush()
end

local function free_sticky()
  for _, home in ipairs(call('SMEMBERS', K.homes)) do
    local heard = tonumber(call('HGET', K.nodes, home))
    if home == request.node or not heard or now - heard >= request.sticky then
      local ids = call('ZRANGEBYSCORE', K.sticky .. ':' .. home, '-inf', now - request.sticky, 'LIMIT', 0, request.limit)
      for _, id in ipairs(ids) do
        local e = entry.read(id)
        if not e then
          later('ZREM', K.sticky .. ':' .. home, id)
        elseif home == request.node then
          tell(late, e)
        else
          local new = entry.copy(e)
          new[NODE] = false
          entry.change(id, new)
          tell(released, e)
        end
      end
    end
    if call('EXISTS', K.sticky .. ':' .. home) == 0 then later('SREM', K.homes, home) end
  end
  flush()
end

local function sweep_periods()
  local scopes = call('ZRANGEBYSCORE', K.periods, '-inf', now, 'LIMIT', 0, request.limit)
  batch.run('HDEL', K.holds, scopes)
  batch.run('ZREM', K.periods, scopes)
end

batch.begin()
reap_leases()
end_expired()
free_sticky()
sweep_periods()
ring()
return remember({ now, found })
