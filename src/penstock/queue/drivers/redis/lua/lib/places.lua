-- Places: what one entry's change means for the sets it is in, and how all that a call has decided is written.

local place = {}

function place.leave_ready(name, q, e, field)
  if e.expires then later('ZREM', K.expiries, field) end
  if e.node ~= '' then later('ZREM', K['sticky:'] .. e.node, field) end
  if e.attempt > 0 then later('ZREM', K['retrying:'] .. name, field) end
  if e.due == HELD then later('ZREM', K['held:'] .. name, field) end
  -- Until a suspect is out of the way, workers that hold something get nothing.
  if e.suspect then work.rings = true end
  local member = item.member(item.text(e), q.fifo)
  if q.fifo then
    later('ZREM', ready.key(name, ''), member)
    later('ZREM', K['dues:'] .. name, field)
    queue.look(name, '')
  elseif e.parked then
    later('ZREM', limit.key(name, e.node, limit.value(q, e) or ''), member)
  else
    local value = limit.value(q, e)
    if value then limit.free(name, value) end
    later('ZREM', e.suspect and ready.suspect_key(name, e.node) or ready.key(name, e.node), member)
    queue.look(name, e.node)
  end
end

-- What follows from waiting, whatever the queue's order.
function place.mark_waiting(name, e, field, text)
  work.rings = true
  if e.expires then later('ZADD', K.expiries, e.expires, field) end
  if e.node ~= '' then
    later('ZADD', K['sticky:'] .. e.node, e.due, field)
    later('SADD', K.homes, e.node)
  end
  if e.attempt > 0 then later('ZADD', K['retrying:'] .. name, e.due, field) end
  if e.due == HELD then later('ZADD', K['held:'] .. name, 0, field) end
  if e.node == '' and e.body == e.seq and text == item.fresh(e.text, field) then
    later('HDEL', K.states, field)
  else
    later('HSET', K.states, field, 'W' .. text .. e.node)
  end
end

function place.enter_ready(name, q, e, field)
  local text = item.text(e)
  place.mark_waiting(name, e, field, text)
  local lane = queue.lane(name, q, e.node)
  if q.fifo then
    later('ZADD', ready.key(name, ''), 0, item.member(text, true))
    later('ZADD', K['dues:'] .. name, e.due, field)
    -- A new tail does not matter while the head is known.
    if not (lane.opens or lane.serving or lane.suspect) or e.fence > 0 then queue.look(name, '') end
  elseif e.suspect then
    later('ZADD', ready.suspect_key(name, e.node), 0, item.member(text))
    lane.suspects = true
    queue.stale[name] = true
    queue.look(name, e.node)
  else
    later('ZADD', ready.key(name, e.node), 0, item.member(text))
    local first = lane.serving or lane.opens
    if not first or e.due < first then queue.look(name, e.node) end
  end
end

function place.leave_claim(name, q, e, field)
  claims.remove(e.claim, field)
  if q.fifo then
    if q.held == e.seq then
      q.held = nil
      queue.stale[name] = true
    end
    queue.look(name, '')
    work.rings = true
  elseif q.limit then
    local value = limit.value(q, e)
    if value then
      limit.count(name, value, -1)
      limit.free(name, value)
    end
  end
end

function place.leave(field, old, new)
  local name = old.queue
  local q = queue.read(name)
  if old.claim then place.leave_claim(name, q, old, field) else place.leave_ready(name, q, old, field) end
  if old.labels and not (new and old.labels == new.labels) then
    history.write_labels(old.labels, K['label:'], field, false)
  end
  if old.error and not (new and new.error) then later('HDEL', K.errors, field) end
  if not new then
    later('ZREM', K['live:'] .. name, field)
    queue.look(name)
  end
end

function place.enter(field, old, new)
  local name = new.queue
  local q = queue.read(name)
  if q.unknown then queue.stale[name] = true end
  if not old then
    later('ZADD', K['live:'] .. name, 0, field)
    later('HSET', K.ids, new.id, field)
    -- The earlier end of an id that is used again goes with its other rows.
    if new.earlier then later('ZADD', K['trail:'] .. new.id, 0, new.earlier) end
  end
  if new.labels and not (old and old.labels == new.labels) then
    history.write_labels(new.labels, K['label:'], field, true)
  end
  if new.error and not (old and old.error == new.error) then later('HSET', K.errors, field, new.error) end
  place.enter_ready(name, q, new, field)
end

function place.follow()
  local was, entries = work.was, work.entries
  for i = 1, #work.changed do
    local field = work.changed[i]
    local old, new = was[field], entries[field]
    if old ~= new then
      if old then place.leave(field, old, new) end
      if new then place.enter(field, old, new) end
    end
  end
  work.changed = {}
end

-- --- which lanes have something to give -----------------------------------------------------------------

-- When the lane has its first entry and its first suspect.
function place.firsts(name, q, node, lane)
  if q.fifo then
    local member = not q.locks and not q.held and ready.first(ready.key(name, ''))
    if not member then return nil end
    local text = item.of_member(member, true)
    local due = ready.due_of(text)
    if byte(text, item.size) % 2 == SUSPECT then return nil, due end
    return due
  end
  local opens, suspect = ready.first_due(ready.key(name, node)), nil
  lane.filled = opens ~= nil
  if lane.suspects then
    suspect = ready.first_due(ready.suspect_key(name, node))
    if not suspect then
      lane.suspects = nil
      queue.stale[name] = true
    end
  end
  if q.locks then return nil end
  return opens, suspect
end

function place.index(name, lane, field, key, value)
  if lane[field] ~= value then
    lane[field] = value
    queue.stale[name] = true
    if value then later('ZADD', key, value, name) else later('ZREM', key, name) end
  end
end

function place.index_lane(name, q, node)
  local lane = q.fifo and queue.lane(name, q, node) or q.lanes[node]
  if not lane then return end
  local opens, suspect = place.firsts(name, q, node, lane)
  local filled = lane.filled or lane.suspects or q.fifo
  lane.filled = nil
  if q.rate and (opens or suspect) then
    local earliest = rate.opens(q)
    opens = opens and max(opens, earliest)
    suspect = suspect and max(suspect, earliest)
  end
  local serving
  if opens and opens <= now then
    serving = max(opens, q.served or 0)
    opens = nil
  end
  place.index(name, lane, 'serving', K['serving:'] .. node, serving)
  place.index(name, lane, 'opens', K['opening:'] .. node, opens)
  place.index(name, lane, 'suspect', K['suspected:'] .. node, suspect)
  if not filled then
    q.lanes[node] = nil
    queue.stale[name] = true
  end
end

function place.keep_queue(name, q)
  if not (next(q.lanes) or q.defined or q.locks)
    and call('EXISTS', K['live:'] .. name, K['dead:'] .. name) == 0 then
    if not q.unknown then
      later('HDEL', K.queues, name)
      later('ZREM', K.names, name)
    end
    queue.known[name] = nil
  elseif queue.stale[name] then
    if q.unknown then later('ZADD', K.names, 0, name) end
    q.unknown = nil
    later('HSET', K.queues, name, pack(q))
  end
end

function place.index_all()
  local looks = queue.looks
  for name, nodes in pairs(looks) do
    local q = queue.read(name)
    for node in pairs(nodes) do place.index_lane(name, q, node) end
  end
  for name in pairs(queue.stale) do
    if not looks[name] then looks[name] = {} end
  end
  for name in pairs(looks) do place.keep_queue(name, queue.read(name)) end
  queue.looks, queue.stale = {}, {}
  batch.send()
end

-- --- writing down what the call has decided ----------------------------------------------------------------

function place.write_receipts()
  for key, text in pairs(work.receipts) do
    later('HSET', K.receipts, key, text)
    later('ZADD', K.receipted, now, key)
  end
  work.receipts = {}
end

local function flush()
  if next(work.follow) then link.finish() end
  if #work.rows > 0 then history.write() end
  if #work.exhumed + #work.buried > 0 then history.write_dead() end
  if #work.changed > 0 then place.follow() end
  if next(work.claims_changed) then claims.write() end
  if next(work.holds) then hold.write() end
  if next(work.links_changed) or next(work.waits_changed) then link.write() end
  if next(work.results) then outcome.write() end
  for field, text in pairs(work.bodies) do
    if text then later('HSET', K.entries, field, text) else later('HDEL', K.entries, field) end
  end
  if next(work.receipts) then place.write_receipts() end
  for name, number in pairs(work.counters) do later('HSET', K.counters, name, format('%.0f', number)) end
  work.bodies, work.counters, work.was, work.entries, work.claims, work.ids = {}, {}, {}, {}, {}, {}
  work.claims_left, work.links, work.waits = {}, {}, {}
  batch.send()
  if next(queue.freed) then limit.unpark_freed() end
  if next(queue.looks) or next(queue.stale) then place.index_all() end
end
