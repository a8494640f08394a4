-- Claim: which entries of a queue are handed out, and the record of the lease on them.

-- --- handing out -----------------------------------------------------------------------------------------

-- The record of this claim for a queue, a lane and a kind.
function claiming.record(name, node, kind, source)
  local title = name .. ':' .. node .. (kind and ':' .. kind or '')
  local record = claiming.by_title[title]
  if not record then
    local records = claiming.records
    record = {
      key = claim.id .. ':' .. #records + 1, number = #records + 1, claim = claim.id, owner = claim.owner,
      claimed = now,
      most = claim.sources[source][3] or false, queue = name, node = node, kind = kind, fields = {}, texts = {},
    }
    record.state = 'C' .. record.key
    records[#records + 1], claiming.by_title[title] = record, record
  end
  return record
end

-- The item and the body of an entry, as it is from now on.
function claiming.hand_out(record, field, text, content, source)
  local n = #claiming.items + 1
  claiming.items[n], claiming.bodies[n], claiming.numbers[n] = text, content, record.number
  local k = #record.fields + 1
  record.fields[k], record.texts[k] = field, text
  later('HSET', K.states, field, record.state)
  claiming.left = claiming.left - 1
  claiming.room[source] = claiming.room[source] - 1
end

function claiming.lease(name, e, source)
  local field = packed(e.seq)
  if e.expires then later('ZREM', K.expiries, field) end
  if e.node ~= '' then later('ZREM', K['sticky:'] .. e.node, field) end
  if e.attempt > 0 then later('ZREM', K['retrying:'] .. name, field) end
  if e.mode == 'started' then hold.let_go(e) end
  e.attempt, e.fence = e.attempt + 1, e.fence + 1
  local kind = not (e.labels or e.unique or e.error or e.linked) and 'plain'
  claiming.hand_out(claiming.record(name, e.node, kind, source), field, item.text(e), e.text, source)
  if e.error then
    claiming.errors[#claiming.errors + 1] = #claiming.items
    claiming.errors[#claiming.errors + 1] = e.error
  end
end

function claiming.write_records()
  for _, record in ipairs(claiming.records) do
    record.seqs, record.items = concat(record.fields), concat(record.texts)
    call('HSET', K.claims, record.key, claims.text(record))
    call('ZADD', K['until'], now + claim.lease, record.key)
  end
end

-- Ends or parks what cannot be handed out. Returns whether it can be. One whose label value is full is not a candidate at all.
function claiming.may_start(name, q, e, source)
  local most, value = claim.sources[source][3], limit.value(q, e)
  if value and limit.in_flight(name, value) >= q.limit[2] then
    if not e.suspect then limit.park(name, q, e, value) end
  elseif e.expires and e.expires <= now then
    work.entries[packed(e.seq)] = e
    history.finish(e, 'expired')
  elseif most and e.attempt >= most then
    work.entries[packed(e.seq)] = e
    history.finish(e, 'dead', e.error and 'no attempts left; last: ' .. e.error or 'no attempts left')
    claiming.dead[#claiming.dead + 1] = e.id
  else
    if value then limit.count(name, value, 1) end
    return true
  end
  claiming.tries = claiming.tries - 1
  return false
end

-- --- queues without order --------------------------------------------------------------------------------

-- Up to `most` due members over the lanes of this worker, in order, and the node of each.
function claiming.due(name, q, most)
  local pages, nodes = {}, {}
  for _, node in ipairs(claiming.nodes) do
    if q.lanes[node] then
      local page = ready.due(ready.key(name, node), most)
      if #page > 0 then
        pages[#pages + 1] = page
        nodes[#nodes + 1] = node
      end
    end
  end
  if #pages < 2 then return pages[1] or {}, nodes[1] end
  local merged = {}
  for i, page in ipairs(pages) do
    for _, member in ipairs(page) do
      merged[#merged + 1] = { byte(member), ready.due_of(member), sunpack('>I6', member, 10), member, nodes[i] }
    end
  end
  in_order(merged)
  local members, their_nodes = {}, {}
  for i = 1, min(most, #merged) do members[i], their_nodes[i] = merged[i][4], merged[i][5] end
  return members, their_nodes
end

-- Takes members of lanes and returns how many it handed out. `nodes` is the node of all, or a list of one for each.
function claiming.take_members(name, q, source, nodes, members)
  local before = claiming.left
  local fields = {}
  for n = 1, #members do
    fields[n] = #members[n] == 15 and sub(members[n], 10, 15) or sub(members[n], 16, 21)
  end
  local texts = batch.get(K.entries, fields)
  local plain = nodes == '' and not q.limit
  local most = claim.sources[source][3]
  for n = 1, #members do
    local member, text, field = members[n], texts[n], fields[n]
    local kind = plain and text and #member == 15 and most ~= 0 and body.held_as[byte(text)]
    if kind then
      local record = claiming.record(name, '', kind, source)
      claiming.hand_out(record, field, member .. field .. item.first_tail, text, source)
    else
      claiming.take_member(name, q, source, type(nodes) == 'string' and nodes or nodes[n], member, text)
    end
  end
  return before - claiming.left
end

function claiming.take_member(name, q, source, node, member, text)
  local state = item.of_member(member)
  local field = sub(state, 10, 15)
  if not text then
    later('ZREM', ready.key(name, node), member)
    queue.forget(name, field)
    return
  end
  local e = item.read(body.parse(text), state)
  e.node = node
  e.error = e.fence > 0 and call('HGET', K.errors, field) or false
  if claiming.may_start(name, q, e, source) then
    later('ZREM', ready.key(name, node), member)
    claiming.lease(name, e, source)
  end
end

-- In a queue without limit all that were looked at leave their lane, handed out or ended.
function claiming.remove(name, nodes, members)
  local first, last = members[1], members[#members]
  if type(nodes) == 'string' and byte(first) == byte(last) then
    call('ZREMRANGEBYLEX', ready.key(name, nodes), '[' .. first, '[' .. last)
    return
  end
  for n = 1, #members do
    later('ZREM', ready.key(name, type(nodes) == 'string' and nodes or nodes[n]), members[n])
  end
end

-- Takes up to `most` from a queue without limit and returns how many.
function claiming.take_plain(name, q, source, most)
  local taken = 0
  while taken < most and claiming.tries > 0 do
    local reach = most - taken
    local members, nodes = claiming.due(name, q, reach)
    if #members > 0 then
      taken = taken + claiming.take_members(name, q, source, nodes, members)
      claiming.remove(name, nodes, members)
    end
    if taken == most or #members < reach then break end
    flush() -- what was met is to be gone from the lane before it is looked at again
  end
  return taken
end

-- The same with a limit per label value: one by one, for each start may fill its value for the next, and each end may
-- bring entries back that come before.
function claiming.take_limited(name, q, source, most)
  local taken, reach, again = 0, 200, true
  while again and taken < most and claiming.tries > 0 do
    local members, nodes = claiming.due(name, q, reach)
    again = #members == reach
    for n = 1, #members do
      local node = type(nodes) == 'string' and nodes or nodes[n]
      taken = taken + claiming.take_members(name, q, source, node, { members[n] })
      again = again or #work.changed > 0
      if #work.changed > 0 or taken == most then break end
    end
    if again then flush() end
  end
  return taken
end

-- Takes up to `most` from a queue without order and returns how many.
function claiming.take_from(name, q, source, most)
  most = min(most, rate.room(q))
  if most < 1 then return 0 end
  local take = q.limit and claiming.take_limited or claiming.take_plain
  local taken = take(name, q, source, most)
  if taken > 0 then claiming.served(name, q, taken) end
  for _, node in ipairs(claiming.nodes) do
    if q.lanes[node] then queue.look(name, node) end
  end
  return taken
end

-- --- FIFO queues --------------------------------------------------------------------------------------------

function claiming.lease_head(name, q, e, source)
  local field = packed(e.seq)
  later('ZREM', ready.key(name, ''), item.member(item.text(e), true))
  later('ZREM', K['dues:'] .. name, field)
  claiming.lease(name, e, source)
  q.held = e.seq
  claiming.served(name, q, 1)
end

function claiming.take_head(name, q, source)
  local taken = 0
  while taken == 0 and claiming.tries > 0 and not (q.held or q.locks) and rate.room(q) > 0 do
    local e = queue.head(name)
    if not e or e.due > now or e.suspect then break end
    if claiming.may_start(name, q, e, source) then
      claiming.lease_head(name, q, e, source)
      taken = 1
    else
      flush()
    end
  end
  queue.look(name, '')
  return taken
end

-- --- suspects --------------------------------------------------------------------------------------

-- Due suspects of a queue without order, in order.
function claiming.suspects(name)
  local suspects = {}
  for _, node in ipairs(claiming.nodes) do
    local key = ready.suspect_key(name, node)
    for _, member in ipairs(ready.due(key, claiming.page)) do
      suspects[#suspects + 1] = {
        byte(member), ready.due_of(member), sunpack('>I6', member, 10), member, key, node,
      }
    end
  end
  return in_order(suspects)
end

-- The first due suspect of a queue that may be handed out; what may not ends on the way.
function claiming.suspect_of(name, q, source)
  if q.locks or rate.room(q) < 1 then return nil end
  if q.fifo then
    local e = not q.held and queue.head(name)
    if not e or not e.suspect or e.due > now then return nil end
    return claiming.may_start(name, q, e, source) and e or nil
  end
  for _, suspect in ipairs(claiming.suspects(name)) do
    local member, key, node = suspect[4], suspect[5], suspect[6]
    local e = entry.build(item.of_member(member), node)
    if not e then
      later('ZREM', key, member)
      queue.forget(name, sub(member, 10, 15))
      queue.look(name, node)
    elseif claiming.may_start(name, q, e, source) then
      return e
    end
  end
end

function claiming.find_suspect()
  for _, node in ipairs(claiming.nodes) do
    for _, name in ipairs(call('ZRANGEBYSCORE', K['suspected:'] .. node, '-inf', now)) do
      local source = claiming.source(name)
      if source and claiming.room[source] > 0 then
        local q = queue.read(name)
        local e = claiming.suspect_of(name, q, source)
        if e then return name, q, e, source end
        flush()
      end
    end
  end
end

-- A suspect is handed out by itself; nil when there is none to be handed out.
function claiming.take_suspect()
  local name, q, e, source = claiming.find_suspect()
  if not name then return nil end
  if not claim.alone then
    local value = limit.value(q, e)
    if value then limit.count(name, value, -1) end
    return { false, 'waits' }
  end
  local node = e.node
  if q.fifo then
    claiming.lease_head(name, q, e, source)
  else
    later('ZREM', ready.suspect_key(name, node), item.member(item.text(e)))
    claiming.lease(name, e, source)
    claiming.served(name, q, 1)
  end
  queue.look(name, node)
  return { now, 'suspect' }
end

-- --- the claim -------------------------------------------------------------------------------------

function claiming.take()
  local tried = {}
  if #claiming.families > 0 then
    for _, node in ipairs(claiming.nodes) do claiming.open_lanes(node) end
  end
  while claiming.left > 0 and claiming.tries > 0 do
    local waiting = claiming.waiting(tried)
    if #waiting == 0 then break end
    local share = max(1, floor(claiming.left / #waiting))
    for _, waiter in ipairs(waiting) do
      local name = waiter[4]
      local q, source = queue.read(name), claiming.source(name)
      local most = min(share, claiming.left, claiming.room[source])
      if most > 0 then
        local taken = q.fifo and claiming.take_head(name, q, source) or claiming.take_from(name, q, source, most)
        if taken < most then tried[name] = true end
      end
    end
    flush()
    for name in pairs(queue.unparked) do tried[name] = nil end
    queue.unparked = {}
  end
end

-- The leases that this very claim has given before, when its reply was lost: what to tell, or nil.
function claiming.given_before()
  local keys, suspect = {}, false
  for i = 1, claim.limit do keys[i] = claim.id .. ':' .. i end
  local texts = batch.get(K.claims, keys)
  for i = 1, #keys do
    local record = texts[i] and claims.parse(keys[i], texts[i])
    if record and record.owner == claim.owner then
      record.number = #claiming.records + 1
      record['until'] = tonumber(call('ZSCORE', K['until'], keys[i]))
      claiming.records[record.number] = record
      for at = 1, #record.items, item.size do
        local text = sub(record.items, at, at + item.size - 1)
        local e = entry.build(text, record.node)
        if e then
          local n = #claiming.items + 1
          claiming.items[n], claiming.bodies[n], claiming.numbers[n] = text, e.text, record.number
          if e.error then
            claiming.errors[#claiming.errors + 1] = n
            claiming.errors[#claiming.errors + 1] = e.error
          end
          if e.suspect then suspect = 'suspect' end
        end
      end
    end
  end
  return #claiming.items > 0 and { now, suspect }
end

-- Records (key, queue, node, claimed, until), the number of each entry's record (none while there is but one), items,
-- bodies, errors (which and what), when to look again, 'suspect' or 'waits', the dead.
function claiming.reply(said)
  local records, numbers = {}, {}
  for i, record in ipairs(claiming.records) do
    records[i] = { record.key, record.queue, record.node, record.claimed, record['until'] or now + claim.lease }
  end
  if #records > 1 then
    for i, number in ipairs(claiming.numbers) do numbers[i] = spack('>I2', number) end
  end
  return {
    records, concat(numbers), concat(claiming.items), claiming.bodies, claiming.errors, said[1], said[2], claiming.dead,
  }
end

function claiming.take_claim(wish)
  claim = wish
  claiming.left, claiming.tries, claiming.tick = claim.limit, claiming.patience, nil
  claiming.nodes = { '', claim.node } -- the lanes this worker may take from
  claiming.items, claiming.bodies, claiming.numbers, claiming.errors, claiming.dead = {}, {}, {}, {}, {}
  claiming.records, claiming.by_title = {}, {}
  claiming.room, claiming.named, claiming.families, claiming.covered = {}, {}, {}, {}
  claiming.read_sources()
  local said = claim['repeat'] and claiming.given_before()
  if not said then
    said = claiming.left > 0 and claiming.take_suspect()
    if not said then
      claiming.take()
      said = { claiming.next_time(), false }
    end
    if claiming.tick then later('HSET', K.counters, 'served', format('%.0f', claiming.tick)) end
    claiming.write_records()
    flush()
  end
  return claiming.reply(said)
end
