-- Claims: which entries are handed out, and the leases on them.

function turns.hand_out(id, text, payload, source)
  local entries = turns.entries
  local n = #entries
  entries[n + 1], entries[n + 2] = text, payload
  later('HSET', K.live, id, text)
  later('ZADD', K.leases, now + claim.lease, id)
  turns.left = turns.left - 1
  turns.room[source] = turns.room[source] - 1
end

function turns.lease(name, e, source, payload)
  local id, attempt = e[ID], e[ATTEMPT]
  if e[EXPIRES] then later('ZREM', K.expiries, id) end
  if e[NODE] then later('ZREM', K.sticky .. ':' .. e[NODE], id) end
  if attempt > 0 then later('ZREM', K.retrying .. ':' .. name, id) end
  if e[MODE] == 'started' then hold.let_go(e) end
  e[ATTEMPT], e[FENCE] = attempt + 1, e[FENCE] + 1
  e[NONCE], e[OWNER], e[CLAIMED] = claim.id, claim.owner, now
  e[MOST] = claim.sources[source].attempts or false
  turns.hand_out(id, entry.text(e), payload, source)
end

-- Ends or parks what cannot be handed out; whether it can. One whose label value is full is no candidate at all.
function turns.may_start(name, q, e, source, payload)
  local most, value = claim.sources[source].attempts, limit.value(q, e)
  if value and limit.in_flight(name, value) >= q.limit[2] then
    if not e[SUSPECT] then limit.park(name, q, e, value) end
  elseif e[EXPIRES] and e[EXPIRES] <= now then
    work.live[e[ID]] = e
    ended.finish(e, 'expired')
  elseif not payload or (most and e[ATTEMPT] >= most) then
    work.live[e[ID]] = e
    local left = e[ERROR] and 'no attempts left; last: ' .. e[ERROR] or 'no attempts left'
    ended.finish(e, 'dead', payload and left or 'payload_missing')
    turns.dead[#turns.dead + 1] = e[ID]
  else
    if value then limit.count(name, value, 1) end
    return true
  end
  turns.patience = turns.patience - 1
  return false
end

-- The moment a queue was served; no two are the same, so that queues take turns also within a microsecond.
function turns.served(name, q, starts)
  turns.tick = max(now, (turns.tick or tonumber(call('HGET', K.counters, 'served')) or 0) + 1)
  q.served = turns.tick
  queue.stale[name] = true
  rate.spend(name, q, starts)
end

-- Up to `most` due entries of one priority over the lanes that have it, in order: keys and members.
function turns.due(name, nodes, priority, most)
  local keys, members, found = {}, {}, {}
  if #nodes == 1 then
    local key = K.waiting .. ':' .. name .. ':' .. nodes[1] .. ':' .. priority
    return key, call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most)
  end
  for i = 1, #nodes do
    local key = K.waiting .. ':' .. name .. ':' .. nodes[i] .. ':' .. priority
    local page = call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
    for n = 1, #page, 2 do
      found[#found + 1] = { 0, tonumber(page[n + 1]), tonumber(sub(page[n], 1, 15)), page[n], key }
    end
  end
  turns.in_order(found)
  for n = 1, min(most, #found) do members[n], keys[n] = found[n][4], found[n][5] end
  return keys, members
end

-- The priorities of a queue's lanes, high first, and the nodes of the lanes that have each.
function turns.priorities(q)
  local found, nodes = {}, {}
  for _, node in ipairs(turns.nodes) do
    for _, priority in ipairs(q.lanes[node] and q.lanes[node].p or {}) do
      if not nodes[priority] then
        nodes[priority] = {}
        found[#found + 1] = priority
      end
      table.insert(nodes[priority], node)
    end
  end
  if #found > 1 then table.sort(found, function(a, b) return a > b end) end
  return found, nodes
end

-- Takes members of lanes; how many. `keys` is the lane's key, or one for each member.
function turns.take_members(name, q, source, keys, members)
  local ids, fields, taken = {}, {}, 0
  for n = 1, #members do ids[n], fields[n] = sub(members[n], 16), sub(members[n], 1, 15) end
  local texts, payloads = batch.get(K.live, ids), batch.get(K.payloads, fields)
  local most = claim.sources[source].attempts
  local lease = struct.pack('<I4BBc0Hc0Hc0', most or 0, 0, #name, name, #claim.id, claim.id, #claim.owner, claim.owner)
  for n = 1, #members do
    local text, payload, id = texts[n], payloads[n], ids[n]
    local key = type(keys) == 'string' and keys or keys[n]
    if not text then
      -- Deleted by hand: nothing is left to be handed out.
      later('ZREM', key, members[n])
      later('ZREM', K.all .. ':' .. name, id)
    else
      local fence, attempt, _, _, care, _, _, _, rest = struct.unpack(entry.prefix, text)
      if care == 0 and attempt == 0 and payload then
        later('ZREM', key, members[n])
        text = struct.pack('<I4I4d', fence + 1, 1, now) .. lease .. sub(text, rest)
        turns.hand_out(id, text, payload, source)
        taken = taken + 1
      else
        local e = entry.parse(text)
        if turns.may_start(name, q, e, source, payload) then
          later('ZREM', key, members[n])
          turns.lease(name, e, source, payload)
          taken = taken + 1
        end
      end
    end
  end
  return taken
end

-- Takes up to `most` from a queue without order or limit; how many.
function turns.take_plain(name, q, source, most)
  local taken = 0
  local priorities, nodes = turns.priorities(q)
  for _, priority in ipairs(priorities) do
    while taken < most and turns.patience > 0 do
      local reach = most - taken
      local keys, members = turns.due(name, nodes[priority], priority, reach)
      taken = taken + turns.take_members(name, q, source, keys, members)
      if taken == most or #members < reach then break end
      flush() -- what was met is to be gone from the lane before it is looked at again
    end
  end
  return taken
end

-- The same with a limit per label value: one by one, for each start may fill its value for the next, and each end may
-- bring entries back that come before.
function turns.take_limited(name, q, source, most)
  local taken, reach, again = 0, 200, true
  while again and taken < most and turns.patience > 0 do
    again = false
    local priorities, nodes = turns.priorities(q)
    for _, priority in ipairs(priorities) do
      local keys, members = turns.due(name, nodes[priority], priority, reach)
      for n = 1, #members do
        local key = type(keys) == 'string' and keys or keys[n]
        taken = taken + turns.take_members(name, q, source, key, { members[n] })
        again = #work.changed > 0
        if again or taken == most then break end
      end
      again = again or #members == reach
      if again or taken == most then break end
    end
    if again then flush() end
  end
  return taken
end

-- Takes up to `most` from a queue without order; how many it gave.
function turns.take_from(name, q, source, most)
  most = min(most, rate.room(q))
  local taken = q.limit and turns.take_limited(name, q, source, most) or turns.take_plain(name, q, source, most)
  if taken > 0 then turns.served(name, q, taken) end
  for _, node in ipairs(turns.nodes) do
    if q.lanes[node] then queue.look(name, node) end
  end
  return taken
end

function turns.take_head(name, q, source)
  local taken = 0
  while taken == 0 and turns.patience > 0 and not (q.held or q.locks) and rate.room(q) > 0 do
    local e = queue.head(name)
    if not e or e[DUE] > now or e[SUSPECT] then break end
    local payload = call('HGET', K.payloads, pad(e[SEQ]))
    if turns.may_start(name, q, e, source, payload) then
      later('ZREM', queue.key(name, e), entry.member(e))
      turns.lease(name, e, source, payload)
      q.held = e[ID]
      turns.served(name, q, 1)
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
function turns.suspect_of(name, q, source)
  if q.locks or rate.room(q) < 1 then return nil end
  if q.fifo then
    local e = not q.held and queue.head(name)
    if not e or not e[SUSPECT] or e[DUE] > now then return nil end
    local payload = call('HGET', K.payloads, pad(e[SEQ]))
    return turns.may_start(name, q, e, source, payload) and e or nil, payload
  end
  local found = {}
  for _, node in ipairs(turns.nodes) do
    local key = queue.suspect_key(name, node)
    local page = call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES', 'LIMIT', 0, turns.page)
    for n = 1, #page, 2 do
      local member = page[n]
      local place = { tonumber(sub(member, 1, 3)), tonumber(page[n + 1]), tonumber(sub(member, 4, 18)) }
      place[4], place[5], place[6] = member, key, node
      found[#found + 1] = place
    end
  end
  for _, one in ipairs(turns.in_order(found)) do
    local member, key, node = one[4], one[5], one[6]
    local e = entry.parse(call('HGET', K.live, sub(member, 19)))
    local payload = call('HGET', K.payloads, sub(member, 4, 18))
    if not e then
      later('ZREM', key, member)
      queue.look(name, node)
    elseif turns.may_start(name, q, e, source, payload) then
      return e, payload
    end
  end
end

function turns.find_suspect()
  for _, node in ipairs(turns.nodes) do
    for _, name in ipairs(call('ZRANGEBYSCORE', K.suspects .. ':' .. node, '-inf', now)) do
      local source = turns.source(name)
      if source and turns.room[source] > 0 then
        local q = queue.read(name)
        local e, payload = turns.suspect_of(name, q, source)
        if e then return name, q, e, source, payload end
        flush()
      end
    end
  end
end

-- A suspect is handed out by itself; nil when there is none to be handed out.
function turns.take_suspect()
  local name, q, e, source, payload = turns.find_suspect()
  if not name then return nil end
  if not claim.alone then
    local value = limit.value(q, e)
    if value then limit.count(name, value, -1) end
    return { false, 'waits' }
  end
  local node = e[NODE] or ''
  if q.fifo then
    later('ZREM', queue.key(name, e), entry.member(e))
    q.held = e[ID]
  else
    later('ZREM', queue.suspect_key(name, node), queue.suspect_member(e))
  end
  turns.lease(name, e, source, payload)
  queue.look(name, node)
  turns.served(name, q, 1)
  return { now, 'suspect' }
end

-- --- the claim -------------------------------------------------------------------------------------

function turns.take()
  local tried = {}
  if #turns.families > 0 then
    for _, node in ipairs(turns.nodes) do turns.line_up(node) end
  end
  while turns.left > 0 and turns.patience > 0 do
    local waiting = turns.waiting(tried)
    if #waiting == 0 then break end
    local share = max(1, floor(turns.left / #waiting))
    for _, one in ipairs(waiting) do
      local name = one[4]
      local q, source = queue.read(name), turns.source(name)
      local most = min(share, turns.left, turns.room[source])
      if most > 0 then
        local taken = q.fifo and turns.take_head(name, q, source) or turns.take_from(name, q, source, most)
        if taken < most then tried[name] = true end
      end
    end
    flush()
    for name in pairs(queue.unparked) do tried[name] = nil end
    queue.unparked = {}
  end
end

-- The leases that this very claim has given before, when its reply was lost.
function turns.given_before()
  local found, untils, suspect = {}, {}, false
  local ids = call('ZRANGE', K.leases, 0, -1, 'WITHSCORES')
  for n = 1, #ids, 2 do
    local text = call('HGET', K.live, ids[n])
    local e = entry.parse(text)
    if e and e[NONCE] == claim.id and e[OWNER] == claim.owner then
      found[#found + 1] = { e, text, tonumber(ids[n + 1]) }
    end
  end
  table.sort(found, function(a, b) return a[1][SEQ] < b[1][SEQ] end)
  for n, one in ipairs(found) do
    turns.entries[2 * n - 1], turns.entries[2 * n] = one[2], call('HGET', K.payloads, pad(one[1][SEQ])) or ''
    untils[n] = one[3]
    if one[1][SUSPECT] then suspect = 'suspect' end
  end
  return #found > 0 and { now, suspect, untils }
end

-- Entries (text and payload in turn), when to look again, 'suspect' or 'waits', the dead, ends of leases given before.
function take_claim(wish)
  claim = wish
  turns.left, turns.patience = claim.limit, 2000 -- so many it ends or parks before it leaves the rest to the next one
  turns.nodes = { '', claim.node } -- the lanes this worker may take from
  turns.entries, turns.dead, turns.room, turns.named, turns.families, turns.covered = {}, {}, {}, {}, {}, {}
  turns.read_sources()
  local said = claim['repeat'] and turns.given_before()
  if not said then
    said = turns.left > 0 and turns.take_suspect()
    if not said then
      turns.take()
      said = { turns.next_time(), false }
    end
    if turns.tick then later('HSET', K.counters, 'served', format('%.0f', turns.tick)) end
    flush()
  end
  return { turns.entries, said[1], said[2], turns.dead, said[3] or {} }
end
