-- Claims: which queue is next, which entry, and the lease on it.

-- Entries (text and payload in turn), when to look again, 'suspect' or 'waits', the dead, ends of leases given before.
local function take_claim(claim)
  local PAGE = 1000 -- queues looked at together
  local PATIENCE = 2000 -- entries that one claim ends or parks before it leaves the rest to the next one

  local entries, dead_at_claim = {}, {}
  local left = claim.limit
  local budget = PATIENCE
  local nodes = { '', claim.node } -- the lanes this worker may take from
  local room, named, families, covered = {}, {}, {}, {}

  local function read_sources()
    for i, source in ipairs(claim.sources) do
      room[i] = source.limit
      if source.family then
        families[#families + 1] = { at = i, prefix = source.name, size = #source.name }
      else
        named[#named + 1] = source.name
        covered[source.name] = i
      end
    end
    table.sort(families, function(a, b) return a.size > b.size end)
  end

  -- The source that answers for a queue: its own before a family, a longer family before a shorter one; or false.
  local function source_of(name)
    local found = covered[name]
    if found == nil then
      found = false
      for i = 1, #families do
        local family = families[i]
        if sub(name, 1, family.size) == family.prefix then
          found = family.at
          break
        end
      end
      covered[name] = found
    end
    return found
  end

  -- --- taking ----------------------------------------------------------------------------------------

  local function lease(name, q, e, source, payload)
    local was_waiting = e[ATTEMPT]
    local node = e[NODE] or ''
    if e[EXPIRES] then later('ZREM', K.expiries, e[ID]) end
    if e[NODE] then later('ZREM', K.sticky .. ':' .. node, e[ID]) end
    if was_waiting > 0 then later('ZREM', K.retrying .. ':' .. name, e[ID]) end
    if e[MODE] == 'started' then hold.let_go(e) end
    e[ATTEMPT], e[FENCE] = was_waiting + 1, e[FENCE] + 1
    e[NONCE], e[OWNER], e[CLAIMED] = claim.id, claim.owner, now
    e[MOST] = claim.sources[source].attempts or false
    local text = pack(e)
    later('HSET', K.live, e[ID], text)
    later('ZADD', K.leases, now + claim.lease, e[ID])
    local n = #entries
    entries[n + 1], entries[n + 2] = text, payload
    left = left - 1
    room[source] = room[source] - 1
  end

  -- Ends or parks what cannot be handed out; whether it can.
  local function may_start(name, q, e, source, payload)
    local most = claim.sources[source].attempts
    if e[EXPIRES] and e[EXPIRES] <= now then
      work.live[e[ID]] = e
      ended.finish(e, 'expired')
    elseif not payload or (most and e[ATTEMPT] >= most) then
      work.live[e[ID]] = e
      ended.finish(e, 'dead', payload and 'no attempts left' or 'payload_missing')
      dead_at_claim[#dead_at_claim + 1] = e[ID]
    else
      local value = limit.value(q, e)
      if not value then return true end
      if limit.in_flight(name, value) < q.limit[2] then
        limit.count(name, value, 1)
        return true
      end
      if not e[SUSPECT] then limit.park(name, q, e, value) end
    end
    budget = budget - 1
    return false
  end

  local ticks

  -- The moment a queue was served; no two are the same, so that queues take turns also within a microsecond.
  local function tick()
    ticks = max(now, (ticks or tonumber(call('HGET', K.counters, 'served')) or 0) + 1)
    return ticks
  end

  local function served(name, q, starts)
    q.served = tick()
    queue.stale[name] = true
    rate.spend(name, q, starts)
  end

  -- Up to `most` due entries of one priority over the lanes that have it, in order: keys and members.
  local function due_of(name, lanes, priority, most)
    local keys, members = {}, {}
    local first
    for i = 1, #lanes do
      local key = K.waiting .. ':' .. name .. ':' .. lanes[i] .. ':' .. priority
      if #lanes == 1 then
        members = call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most)
        for n = 1, #members do keys[n] = key end
        return keys, members
      end
      local found = call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
      first = first or {}
      for n = 1, #found, 2 do
        first[#first + 1] = { tonumber(found[n + 1]), tonumber(sub(found[n], 1, 15)), key, found[n] }
      end
    end
    table.sort(first, function(a, b)
      if a[1] ~= b[1] then return a[1] < b[1] end
      return a[2] < b[2]
    end)
    for n = 1, min(most, #first) do keys[n], members[n] = first[n][3], first[n][4] end
    return keys, members
  end

  local function priorities_of(q)
    local found, seen = {}, {}
    for _, node in ipairs(nodes) do
      for _, priority in ipairs(q.lanes[node] and q.lanes[node].p or {}) do
        if not seen[priority] then
          seen[priority] = {}
          found[#found + 1] = priority
        end
        table.insert(seen[priority], node)
      end
    end
    if #found > 1 then table.sort(found, function(a, b) return a > b end) end
    return found, seen
  end

  local function take_members(name, q, source, keys, members)
    local ids, fields, taken = {}, {}, 0
    for n = 1, #members do ids[n], fields[n] = sub(members[n], 16), sub(members[n], 1, 15) end
    local texts, found = batch.get(K.live, ids), batch.get(K.payloads, fields)
    for n = 1, #members do
      local e = texts[n] and entry.parse(texts[n])
      if not e then
        -- Deleted by hand: nothing is left to be handed out.
        later('ZREM', keys[n], members[n])
        later('ZREM', K.all .. ':' .. name, ids[n])
      elseif may_start(name, q, e, source, found[n]) then
        later('ZREM', keys[n], members[n])
        lease(name, q, e, source, found[n])
        taken = taken + 1
      end
    end
    return taken
  end

  local function look_at_lanes(name, q)
    if q.lanes[''] then queue.look(name, '') end
    if q.lanes[claim.node] then queue.look(name, claim.node) end
  end

  -- Takes up to `most` from a queue without order; how many it gave.
  local function take_from(name, q, source, most)
    local taken = 0
    most = min(most, rate.room(q))
    local priorities, lanes = priorities_of(q)
    for _, priority in ipairs(priorities) do
      while taken < most and budget > 0 do
        -- Entries whose label value is full are passed over, so a limited queue needs a wider look.
        local reach = q.limit and max(most - taken, 200) or most - taken
        local keys, members = due_of(name, lanes[priority], priority, reach)
        if q.limit then
          -- One by one: each start may fill its value for the next.
          for n = 1, #members do
            if taken < most then taken = taken + take_members(name, q, source, { keys[n] }, { members[n] }) end
          end
        elseif #members > 0 then
          taken = taken + take_members(name, q, source, keys, members)
        end
        if #members < reach then break end
        -- What was met is gone from the lane before it is looked at again.
        flush()
      end
    end
    if taken > 0 then served(name, q, taken) end
    look_at_lanes(name, q)
    return taken
  end

  local function take_head(name, q, source)
    local taken = 0
    while taken == 0 and budget > 0 and not (q.held or q.locks) and rate.room(q) > 0 do
      local e = queue.head(name)
      if not e or e[DUE] > now or e[SUSPECT] then break end
      local payload = call('HGET', K.payloads, pad(e[SEQ]))
      if may_start(name, q, e, source, payload) then
        lease(name, q, e, source, payload)
        q.held = e[ID]
        served(name, q, 1)
        taken = 1
      else
        flush()
      end
    end
    queue.look(name, '')
    return taken
  end

  -- --- suspects --------------------------------------------------------------------------------------

  -- The first due suspect of a queue that may be handed out; what may not ends on the way.
  local function suspect_of(name, q, source, node)
    if q.locks or rate.room(q) < 1 then return nil end
    if q.fifo then
      local e = not q.held and queue.head(name)
      if not e or not e[SUSPECT] or e[DUE] > now then return nil end
      local payload = call('HGET', K.payloads, pad(e[SEQ]))
      if may_start(name, q, e, source, payload) then return e, payload end
      return nil
    end
    local key = K.suspect .. ':' .. name .. ':' .. node
    for _, one in ipairs(call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, PAGE)) do
      local e = entry.parse(call('HGET', K.live, sub(one, 16)))
      local payload = call('HGET', K.payloads, sub(one, 1, 15))
      if not e then
        later('ZREM', key, one)
        queue.look(name, node)
      elseif may_start(name, q, e, source, payload) then
        return e, payload
      end
    end
  end

  local function find_suspect()
    for _, node in ipairs(nodes) do
      for _, name in ipairs(call('ZRANGEBYSCORE', K.suspects .. ':' .. node, '-inf', now)) do
        local source = source_of(name)
        if source and room[source] > 0 then
          local q = queue.read(name)
          local e, payload = suspect_of(name, q, source, node)
          if e then return name, q, e, source, payload end
          flush()
        end
      end
    end
  end

  -- A suspect is handed out by itself; nil when there is none to be handed out.
  local function take_suspect()
    local name, q, e, source, payload = find_suspect()
    if not name then return nil end
    if not claim.alone then
      local value = limit.value(q, e)
      if value then limit.count(name, value, -1) end
      return { false, 'waits' }
    end
    later('ZREM', K.suspect .. ':' .. name .. ':' .. (e[NODE] or ''), entry.member(e))
    lease(name, q, e, source, payload)
    if q.fifo then q.held = e[ID] end
    queue.look(name, e[NODE] or '')
    served(name, q, 1)
    return { now, 'suspect' }
  end

  -- --- turns -----------------------------------------------------------------------------------------

  -- When this queue's turn is, or nil if it has none by now.
  local function turn_of(q)
    local turn
    for _, node in ipairs(nodes) do
      local lane = q.lanes[node]
      local its = lane and (lane.turn or (lane.at and lane.at <= now and max(lane.at, q.served or 0)))
      if its and (not turn or its < turn) then turn = its end
    end
    return turn
  end

  -- Lanes whose time has come are lined up by turn.
  local function line_up(node)
    local names = call('ZRANGEBYSCORE', K.opens .. ':' .. node, '-inf', now, 'LIMIT', 0, PAGE)
    for _, name in ipairs(names) do
      local lane = queue.read(name).lanes[node]
      if lane then queue.look(name, node) else later('ZREM', K.opens .. ':' .. node, name) end
    end
    if #names > 0 then flush() end
  end

  -- Queues that have something to give and room to take it, the one that has waited longest first.
  local function next_queues(tried)
    local found, seen = {}, {}
    for _, name in ipairs(named) do
      local turn = not tried[name] and room[covered[name]] > 0 and turn_of(queue.read(name))
      if turn then found[#found + 1] = { turn, name, #found } end
      seen[name] = true
    end
    if #families > 0 then
      for _, node in ipairs(nodes) do
        local start, more = 0, left
        while more > 0 do
          local page = call('ZRANGE', K.ready .. ':' .. node, start, start + PAGE - 1, 'WITHSCORES')
          for n = 1, #page, 2 do
            local name = page[n]
            local source = not seen[name] and not tried[name] and source_of(name)
            if source and room[source] > 0 then
              seen[name] = true
              found[#found + 1] = { tonumber(page[n + 1]), name, #found }
              more = more - 1
              if more == 0 then break end
            end
          end
          if #page < 2 * PAGE then break end
          start = start + PAGE
        end
      end
    end
    table.sort(found, function(a, b)
      if a[1] ~= b[1] then return a[1] < b[1] end
      return a[3] < b[3]
    end)
    return found
  end

  local function take_turns()
    local tried = {}
    if #families > 0 then
      line_up('')
      if claim.node ~= '' then line_up(claim.node) end
    end
    while left > 0 and budget > 0 do
      local waiting = next_queues(tried)
      if #waiting == 0 then break end
      local share = max(1, floor(left / #waiting))
      for _, one in ipairs(waiting) do
        local name = one[2]
        local q, source = queue.read(name), source_of(name)
        local most = min(share, left, room[source])
        if most > 0 then
          local taken = q.fifo and take_head(name, q, source) or take_from(name, q, source, most)
          if taken < most then tried[name] = true end
        end
      end
      flush()
    end
  end

  -- --- when to look again ------------------------------------------------------------------------------

  local function first_covered(index)
    local start = 0
    while true do
      local page = call('ZRANGE', index, start, start + PAGE - 1, 'WITHSCORES')
      for n = 1, #page, 2 do
        local source = source_of(page[n])
        if source and claim.sources[source].limit > 0 then return tonumber(page[n + 1]) end
      end
      if #page < 2 * PAGE then return nil end
      start = start + PAGE
    end
  end

  local function next_time()
    local soonest
    local function at(time)
      if time and (not soonest or time < soonest) then soonest = time end
    end
    for _, node in ipairs(nodes) do
      for _, name in ipairs(named) do
        local lane = claim.sources[covered[name]].limit > 0 and queue.read(name).lanes[node]
        if lane then
          at(lane.turn and now)
          at(lane.at)
          at(lane.sus)
        end
      end
      if #families > 0 and soonest ~= now then
        at(first_covered(K.ready .. ':' .. node) and now)
        at(first_covered(K.opens .. ':' .. node))
        at(first_covered(K.suspects .. ':' .. node))
      end
    end
    return soonest and max(soonest, now) or false
  end

  -- --- the claim -------------------------------------------------------------------------------------

  -- The leases that this very claim has given before, when its reply was lost.
  local function given_before()
    local found = {}
    local ids = call('ZRANGE', K.leases, 0, -1, 'WITHSCORES')
    for n = 1, #ids, 2 do
      local text = call('HGET', K.live, ids[n])
      local e = text and decode(text)
      if e and e[NONCE] == claim.id and e[OWNER] == claim.owner then
        found[#found + 1] = { e, text, tonumber(ids[n + 1]) }
      end
    end
    table.sort(found, function(a, b) return a[1][SEQ] < b[1][SEQ] end)
    local untils, suspect = {}, nil
    for n, one in ipairs(found) do
      entries[2 * n - 1], entries[2 * n] = one[2], call('HGET', K.payloads, pad(one[1][SEQ])) or ''
      untils[n] = one[3]
      if one[1][SUSPECT] then suspect = 'suspect' end
    end
    return #found > 0 and { now, suspect or false, untils }
  end

  read_sources()
  local said = claim['repeat'] and given_before()
  if not said then
    said = left > 0 and take_suspect()
    if not said then
      take_turns()
      said = { next_time(), false }
    end
    if ticks then later('HSET', K.counters, 'served', format('%.0f', ticks)) end
    flush()
    batch.send()
  end
  return { entries, said[1], said[2], dead_at_claim, said[3] or {} }
end
