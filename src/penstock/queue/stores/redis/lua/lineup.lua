-- The line-up: what one entry's change means for the indexes, and how all that a script has decided is written down.

-- --- following one entry from what it was to what it is ----------------------------------------------

local index = {}

-- Adds a name to the index of each label of an entry; without a score, takes it out.
function index.labels(e, key, name, score)
  for label, value in pairs(cjson.decode(e[LABELS])) do
    local at = key .. ':' .. label .. '=' .. value
    if score then later('ZADD', at, score, name) else later('ZREM', at, name) end
  end
end

function index.leave_place(name, q, e)
  local id, node = e[ID], e[NODE] or ''
  if e[EXPIRES] then later('ZREM', K.expiries, id) end
  if e[NODE] then later('ZREM', K.sticky .. ':' .. node, id) end
  if e[ATTEMPT] > 0 then later('ZREM', K.retrying .. ':' .. name, id) end
  -- Until a suspect is out of the way, workers that hold something get nothing.
  if e[SUSPECT] then work.rings = true end
  if q.fifo then
    later('ZREM', queue.key(name, e), entry.member(e))
    queue.look(name, '')
  elseif e[PARKED] then
    later('ZREM', limit.key(name, node, e[PARKED]), limit.member(e))
  else
    local value = limit.value(q, e)
    if value then limit.free(name, value) end
    if e[SUSPECT] then
      later('ZREM', queue.suspect_key(name, node), queue.suspect_member(e))
    else
      later('ZREM', queue.key(name, e), entry.member(e))
    end
    queue.look(name, node)
  end
end

function index.take_place(name, q, e)
  local id, node, due = e[ID], e[NODE] or '', e[DUE]
  work.rings = true
  if e[EXPIRES] then later('ZADD', K.expiries, e[EXPIRES], id) end
  if e[NODE] then
    later('ZADD', K.sticky .. ':' .. node, due, id)
    later('SADD', K.homes, node)
  end
  if e[ATTEMPT] > 0 then later('ZADD', K.retrying .. ':' .. name, due, id) end
  if q.fifo then
    -- The order is that of `all`; by due time they are only counted. A new one at the tail is no reason to look,
    -- while the head is known.
    later('ZADD', queue.key(name, e), due, entry.member(e))
    local lane = queue.add_priority(name, q, e)
    if not (lane.at or lane.turn or lane.sus) or e[FENCE] > 0 then queue.look(name, '') end
  elseif e[SUSPECT] then
    later('ZADD', queue.suspect_key(name, node), due, queue.suspect_member(e))
    queue.lane(name, q, node).s = true
    queue.stale[name] = true
    queue.look(name, node)
  else
    later('ZADD', queue.key(name, e), due, entry.member(e))
    local lane = queue.add_priority(name, q, e)
    local first = lane.turn or lane.at
    if not first or due < first then queue.look(name, node) end
  end
end

function index.leave_lease(name, q, e)
  later('ZREM', K.leases, e[ID])
  if q.fifo then
    if q.held == e[ID] then
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

function index.follow(id, old, new)
  local same = old and new and old[SEQ] == new[SEQ]
  local relabelled = not (same and old[LABELS] == new[LABELS])
  if old then
    local name = old[QUEUE]
    local q = queue.read(name)
    if not same then later('ZREM', K.all .. ':' .. name, id) end
    if old[NONCE] then index.leave_lease(name, q, old) else index.leave_place(name, q, old) end
    if old[LABELS] and relabelled then index.labels(old, K.label, id) end
    if not new then
      later('HDEL', K.live, id)
      queue.look(name)
    end
  end
  if new then
    local name = new[QUEUE]
    local q = queue.read(name)
    if q.unknown then queue.stale[name] = true end
    later('HSET', K.live, id, entry.text(new))
    if not same then later('ZADD', K.all .. ':' .. name, new[SEQ], id) end
    if new[LABELS] and relabelled then index.labels(new, K.label, id, new[SEQ]) end
    index.take_place(name, q, new)
  end
end

-- --- lining the lanes up -----------------------------------------------------------------------------

-- When the lane has its first entry and its first suspect.
function index.firsts(name, q, node, lane)
  local opens, suspect
  if q.fifo then
    local head = not q.locks and not q.held and queue.head(name)
    if head and head[SUSPECT] then return nil, head[DUE] end
    return head and head[DUE] or nil
  end
  local left = {}
  for i = 1, #lane.p do
    local first = call('ZRANGE', K.waiting .. ':' .. name .. ':' .. node .. ':' .. lane.p[i], 0, 0, 'WITHSCORES')
    if first[1] then
      left[#left + 1] = lane.p[i]
      local due = tonumber(first[2])
      if not opens or due < opens then opens = due end
    end
  end
  if #left ~= #lane.p then
    lane.p = left
    queue.stale[name] = true
  end
  if lane.s then
    suspect = tonumber(call('ZRANGE', queue.suspect_key(name, node), 0, 0, 'WITHSCORES')[2])
    if not suspect then lane.s = nil end
  end
  if q.locks then return nil end
  return opens, suspect
end

function index.put(name, lane, field, key, value)
  if lane[field] ~= value then
    lane[field] = value
    queue.stale[name] = true
    if value then later('ZADD', key, value, name) else later('ZREM', key, name) end
  end
end

function index.line_up(name, q, node)
  local lane = q.fifo and queue.lane(name, q, node) or q.lanes[node]
  if not lane then return end
  local opens, suspect = index.firsts(name, q, node, lane)
  if q.rate and (opens or suspect) then
    local earliest = rate.opens(q)
    opens = opens and max(opens, earliest)
    suspect = suspect and max(suspect, earliest)
  end
  local turn
  if opens and opens <= now then
    turn = max(opens, q.served or 0)
    opens = nil
  end
  index.put(name, lane, 'turn', K.ready .. ':' .. node, turn)
  index.put(name, lane, 'at', K.opens .. ':' .. node, opens)
  index.put(name, lane, 'sus', K.suspects .. ':' .. node, suspect)
  if #lane.p == 0 and not lane.s and not q.fifo then
    q.lanes[node] = nil
    queue.stale[name] = true
  end
end

function index.keep_queue(name, q)
  if not (next(q.lanes) or q.defined or q.locks)
    and call('ZCARD', K.all .. ':' .. name) == 0 and call('ZCARD', K.dead .. ':' .. name) == 0 then
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

function index.line_up_all()
  local looks = queue.looks
  for name, nodes in pairs(looks) do
    local q = queue.read(name)
    for node in pairs(nodes) do index.line_up(name, q, node) end
  end
  for name in pairs(queue.stale) do
    if not looks[name] then looks[name] = {} end
  end
  for name in pairs(looks) do index.keep_queue(name, queue.read(name)) end
  queue.looks, queue.stale = {}, {}
  batch.send()
end

-- --- writing down what the script has decided ----------------------------------------------------------

local write = {}

function write.rows()
  for i = 1, #work.rows do
    local row = work.rows[i]
    local e, field = row.e, pad(row.seq)
    later('HSET', K.rows, field, row.text)
    later('ZADD', K.history .. ':' .. e[QUEUE], row.seq, field)
    if e[LABELS] then index.labels(e, K.row_label, field, row.seq) end
    if row.final then write.last(e[ID], field) else later('ZADD', K.trail .. ':' .. e[ID], row.seq, field) end
  end
  work.rows = {}
end

-- Ids that have ended, and their rows.
write.ids, write.fields = {}, {}

function write.last(id, field)
  local n = #write.ids + 1
  write.ids[n], write.fields[n] = id, field
end

function write.ends()
  local ids, fields = write.ids, write.fields
  local before = batch.get(K.ended, ids)
  for i = 1, #ids do
    -- An id may end more than once: its earlier ends go with its other rows.
    if before[i] then later('ZADD', K.trail .. ':' .. ids[i], tonumber(before[i]), before[i]) end
    later('HSET', K.ended, ids[i], fields[i])
  end
  write.ids, write.fields, work.done = {}, {}, {}
end

function write.dead()
  for i = 1, #work.exhumed do
    local e = work.exhumed[i]
    later('HDEL', K.dead, e[ID])
    later('ZREM', K.dead .. ':' .. e[QUEUE], e[ID])
    later('ZREM', K.dead_order, e[ID])
    if e[LABELS] then index.labels(e, K.dead_label, e[ID]) end
    queue.look(e[QUEUE])
  end
  for i = 1, #work.buried do
    local e = work.buried[i].e
    later('HSET', K.dead, e[ID], work.buried[i].text)
    later('ZADD', K.dead .. ':' .. e[QUEUE], e[SEQ], e[ID])
    later('ZADD', K.dead_order, e[SEQ], e[ID])
    if e[LABELS] then index.labels(e, K.dead_label, e[ID], e[SEQ]) end
  end
  work.exhumed, work.buried = {}, {}
end

function write.holds()
  for scope, text in pairs(work.holds) do
    local ends = text and tonumber(string.match(text, '^%d+')) or 0
    if text then later('HSET', K.holds, scope, text) else later('HDEL', K.holds, scope) end
    if ends > 0 then later('ZADD', K.periods, ends, scope) else later('ZREM', K.periods, scope) end
  end
  work.holds = {}
end

function write.changes()
  local was, live = work.was, work.live
  for i = 1, #work.changed do
    local id = work.changed[i]
    if was[id] ~= live[id] then index.follow(id, was[id], live[id]) end
  end
  work.changed = {}
end

local function flush()
  if #work.rows > 0 then write.rows() end
  if #write.ids > 0 then write.ends() end
  if #work.exhumed + #work.buried > 0 then write.dead() end
  if #work.changed > 0 then write.changes() end
  if next(work.holds) then write.holds() end
  for field, payload in pairs(work.payloads) do
    if payload then later('HSET', K.payloads, field, payload) else later('HDEL', K.payloads, field) end
  end
  for id, receipt in pairs(work.receipts) do later('HSET', K.receipts, id, receipt) end
  for name, number in pairs(work.counters) do later('HSET', K.counters, name, format('%.0f', number)) end
  work.payloads, work.counters, work.receipts = {}, {}, {}
  work.was, work.live, work.raw, work.texts = {}, {}, {}, {}
  batch.send()
  if next(queue.freed) then limit.unpark_freed() end
  if next(queue.looks) or next(queue.stale) then index.line_up_all() end
end

local function ring()
  if work.rings then call('SPUBLISH', K.bell, '1') end
end
