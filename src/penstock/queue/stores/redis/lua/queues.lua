-- Queues: where their waiting entries are, and the indexes that say which queue is to be looked at when.
--
-- A lane is a queue's entries for one node, or for any ('' as the node). A lane that has or will have something is in
-- one of three indexes of its node: `ready` by turn, `opens` by the time at which it may give an entry, and besides
-- `suspects` by the due time of its first suspect. So a claim costs per ready queue, not per queue.

local QUEUES, HOMES = P .. 'queues', P .. 'homes'
local ALL, WAITING, SUSPECTED, PARKING = P .. 'all:', P .. 'waiting:', P .. 'suspect:', P .. 'parked:'
local RETRYING, STICKY, IN_FLIGHT, PARKED_GROUPS = P .. 'retrying:', P .. 'sticky:', P .. 'inflight:', P .. 'groups:'
local READY, OPENS, SUSPECTS = P .. 'ready:', P .. 'opens:', P .. 'suspects:'
local HISTORY_OF, TRAIL, DEAD_OF, DEAD_ORDER = P .. 'history:', P .. 'trail:', P .. 'dead:', P .. 'dead_order'
local LIVE_LABEL, DEAD_LABEL, ROW_LABEL = P .. 'label:', P .. 'dead_label:', P .. 'row_label:'

local queues, stale, looks, freed = {}, {}, {}, {}

local function queue(name)
  local q = queues[name]
  if not q then
    local text = call('HGET', QUEUES, name)
    q = text and decode(text) or { lanes = {}, unknown = true }
    queues[name] = q
  end
  return q
end

local function lane_of(name, q, node)
  local lane = q.lanes[node]
  if not lane then
    lane = { p = {} }
    q.lanes[node] = lane
    stale[name] = true
  end
  return lane
end

-- The lane is to be looked at again before the script ends; without a node only whether the queue can be forgotten.
local function look(name, node)
  local nodes = looks[name]
  if not nodes then
    nodes = {}
    looks[name] = nodes
  end
  if node then nodes[node] = true end
end

local function look_all(name, q)
  look(name, '')
  for node in pairs(q.lanes) do look(name, node) end
end

-- --- limits --------------------------------------------------------------------------------------

-- GCRA with a burst of the full count. The theoretical arrival time is kept as whole microseconds and a fraction in
-- units of 1/count, so that nothing is rounded.

local function rate_opens(q)
  local count, period = q.rate[1], q.rate[2]
  local tat = q.tat or { 0, 0 }
  return tat[1] - floor((period * (count - 1) - tat[2]) / count)
end

local function rate_room(q)
  if not q.rate then return math.huge end
  local count, period = q.rate[1], q.rate[2]
  local tat = q.tat or { 0, 0 }
  local ahead = tat[1] < now and 0 or (tat[1] - now) * count + tat[2]
  return max(0, floor((period * (count - 1) - ahead) / period) + 1)
end

local function rate_spend(name, q, starts)
  if not q.rate then return end
  local count, period = q.rate[1], q.rate[2]
  local tat = q.tat or { 0, 0 }
  local whole, part = tat[1], tat[2]
  if whole < now then whole, part = now, 0 end
  part = part + starts * period
  q.tat = { whole + floor(part / count), part % count }
  stale[name] = true
end

local function limited_value(q, e)
  return q.limit and e[LABELS] and cjson.decode(e[LABELS])[q.limit[1]] or nil
end

local function in_flight(name, value) return tonumber(call('HGET', IN_FLIGHT .. name, value)) or 0 end

local function count_in_flight(name, value, by)
  if call('HINCRBY', IN_FLIGHT .. name, value, by) <= 0 then call('HDEL', IN_FLIGHT .. name, value) end
end

-- An entry whose label value is full is parked aside, so that a backlog of it costs the next claims nothing.
local function parking(name, node, value) return PARKING .. name .. ':' .. (node or '') .. ':' .. value end

-- It sorts as the entries are to be taken; the id begins after 3 + 18 + 15 places.
local function parked_member(e) return format('%03d%018.0f', 100 - e[PRIORITY], e[DUE]) .. member(e) end

local function lane_key(name, e) return WAITING .. name .. ':' .. (e[NODE] or '') .. ':' .. e[PRIORITY] end

local function add_priority(name, q, e)
  local lane = lane_of(name, q, e[NODE] or '')
  for i = 1, #lane.p do
    if lane.p[i] == e[PRIORITY] then return lane end
  end
  lane.p[#lane.p + 1] = e[PRIORITY]
  table.sort(lane.p, function(a, b) return a > b end)
  stale[name] = true
  return lane
end

local function unpark(name, q, node, value, most)
  local key = parking(name, node, value)
  local members = call('ZRANGE', key, 0, most - 1)
  local ids = {}
  for i = 1, #members do ids[i] = sub(members[i], 37) end
  local texts = get_many(LIVE, ids)
  for i = 1, #members do
    later('ZREM', key, members[i])
    local e = texts[i] and decode(texts[i])
    if e then
      e[PARKED] = false
      later('HSET', LIVE, e[ID], pack(e))
      later('ZADD', lane_key(name, e), e[DUE], member(e))
      add_priority(name, q, e)
      rings = true
    end
  end
  if #members < most then later('SREM', PARKED_GROUPS .. name, node .. ':' .. value) end
  if #members > 0 then look(name, node) end
end

local function unpark_freed()
  for name, values in pairs(freed) do
    local q = queue(name)
    for value in pairs(values) do
      local room = q.limit and q.limit[2] - in_flight(name, value) or 0
      if room > 0 then
        for node in pairs(q.parks or {}) do unpark(name, q, node, value, room) end
      end
    end
  end
  freed = {}
end

local function free_value(name, value)
  if not freed[name] then freed[name] = {} end
  freed[name][value] = true
  rings = true
end

-- --- following one entry from what it was to what it is ----------------------------------------------

local function each_label(e, command, prefix, score, name)
  for label, value in pairs(cjson.decode(e[LABELS])) do
    if command == 'ZADD' then
      later('ZADD', prefix .. label .. '=' .. value, score, name)
    else
      later('ZREM', prefix .. label .. '=' .. value, name)
    end
  end
end

local function leave_place(name, q, e)
  local node = e[NODE] or ''
  if e[EXPIRES] then later('ZREM', EXPIRIES, e[ID]) end
  if e[NODE] then later('ZREM', STICKY .. node, e[ID]) end
  if e[ATTEMPT] > 0 then later('ZREM', RETRYING .. name, e[ID]) end
  if e[SUSPECT] then rings = true end
  if q.fifo then
    look(name, '')
    return
  end
  if e[PARKED] then
    later('ZREM', parking(name, node, e[PARKED]), parked_member(e))
    return
  end
  local value = limited_value(q, e)
  if value then free_value(name, value) end
  if e[SUSPECT] then
    later('ZREM', SUSPECTED .. name .. ':' .. node, member(e))
  else
    later('ZREM', lane_key(name, e), member(e))
  end
  look(name, node)
end

local function take_place(name, q, e)
  local node = e[NODE] or ''
  rings = true
  if e[EXPIRES] then later('ZADD', EXPIRIES, e[EXPIRES], e[ID]) end
  if e[NODE] then
    later('ZADD', STICKY .. node, e[DUE], e[ID])
    later('SADD', HOMES, node)
  end
  if e[ATTEMPT] > 0 then later('ZADD', RETRYING .. name, e[DUE], e[ID]) end
  if q.fifo then
    local lane = lane_of(name, q, '')
    if not (lane.at or lane.turn or lane.sus) or e[ATTEMPT] > 0 or e[FENCE] > 0 then look(name, '') end
  elseif e[SUSPECT] then
    later('ZADD', SUSPECTED .. name .. ':' .. node, e[DUE], member(e))
    lane_of(name, q, node).s = true
    stale[name] = true
    look(name, node)
  else
    later('ZADD', lane_key(name, e), e[DUE], member(e))
    local lane = add_priority(name, q, e)
    local first = lane.turn or lane.at
    if not first or e[DUE] < first then look(name, node) end
  end
end

local function leave_lease(name, q, e)
  later('ZREM', LEASES, e[ID])
  if q.fifo then
    if q.held == e[ID] then
      q.held = nil
      stale[name] = true
    end
    look(name, '')
    rings = true
  else
    local value = limited_value(q, e)
    if value then
      count_in_flight(name, value, -1)
      free_value(name, value)
    end
  end
end

local function follow(id, old, new)
  if old then
    local name = old[QUEUE]
    local q = queue(name)
    if not new or old[SEQ] ~= new[SEQ] then later('ZREM', ALL .. name, id) end
    if old[NONCE] then leave_lease(name, q, old) else leave_place(name, q, old) end
    if old[LABELS] and not (new and new[LABELS] == old[LABELS] and new[SEQ] == old[SEQ]) then
      each_label(old, 'ZREM', LIVE_LABEL, nil, id)
    end
    if not new then
      later('HDEL', LIVE, id)
      look(name)
    end
  end
  if new then
    local name = new[QUEUE]
    local q = queue(name)
    if q.unknown then stale[name] = true end
    later('HSET', LIVE, id, pack(new))
    if not old or old[SEQ] ~= new[SEQ] then later('ZADD', ALL .. name, new[SEQ], id) end
    if new[LABELS] and not (old and new[LABELS] == old[LABELS] and new[SEQ] == old[SEQ]) then
      each_label(new, 'ZADD', LIVE_LABEL, new[SEQ], id)
    end
    take_place(name, q, new)
  end
end

-- --- the indexes -----------------------------------------------------------------------------------

-- The entry at the head of a FIFO queue; what was deleted by hand is passed over.
local function fifo_head(name)
  while true do
    local id = call('ZRANGE', ALL .. name, 0, 0)[1]
    if not id then return nil end
    local e = read_entry(call('HGET', LIVE, id))
    if e then return e end
    call('ZREM', ALL .. name, id)
  end
end

local function note_at(name, lane, field, index, node, value)
  if lane[field] ~= value then
    lane[field] = value
    stale[name] = true
    if value then later('ZADD', index .. node, value, name) else later('ZREM', index .. node, name) end
  end
end

local function settle_lane(name, q, node)
  local lane = q.fifo and lane_of(name, q, node) or q.lanes[node]
  if not lane then return end
  local opens, suspect
  if q.fifo then
    local head = not q.locks and not q.held and fifo_head(name)
    if head and head[SUSPECT] then suspect = head[DUE] elseif head then opens = head[DUE] end
  else
    local left = {}
    for i = 1, #lane.p do
      local first = call('ZRANGE', WAITING .. name .. ':' .. node .. ':' .. lane.p[i], 0, 0, 'WITHSCORES')
      if first[1] then
        left[#left + 1] = lane.p[i]
        local due = tonumber(first[2])
        if not opens or due < opens then opens = due end
      end
    end
    if #left ~= #lane.p then
      lane.p = left
      stale[name] = true
    end
    if lane.s then
      local first = call('ZRANGE', SUSPECTED .. name .. ':' .. node, 0, 0, 'WITHSCORES')
      suspect = first[2] and tonumber(first[2])
      if not suspect then lane.s = nil end
    end
    if q.locks then opens, suspect = nil, nil end
  end
  if q.rate and (opens or suspect) then
    local earliest = rate_opens(q)
    opens = opens and max(opens, earliest)
    suspect = suspect and max(suspect, earliest)
  end
  local turn
  if opens and opens <= now then
    turn = max(opens, q.served or 0)
    opens = nil
  end
  note_at(name, lane, 'turn', READY, node, turn)
  note_at(name, lane, 'at', OPENS, node, opens)
  note_at(name, lane, 'sus', SUSPECTS, node, suspect or nil)
  if #lane.p == 0 and not lane.s and not q.fifo then
    q.lanes[node] = nil
    stale[name] = true
  end
end

local function keep_queue(name, q)
  if not (next(q.lanes) or q.defined or q.locks)
    and call('ZCARD', ALL .. name) == 0 and call('ZCARD', DEAD_OF .. name) == 0 then
    if not q.unknown then later('HDEL', QUEUES, name) end
    queues[name] = nil
  elseif stale[name] then
    q.unknown = nil
    later('HSET', QUEUES, name, pack(q))
  end
end

-- --- writing down what the script has decided ----------------------------------------------------------

local function write_rows()
  local ended, seqs = {}, {}
  for i = 1, #rows do
    local row = rows[i]
    local e, field = row.e, pad(row.seq)
    later('HSET', ROWS, field, row.text)
    later('ZADD', HISTORY_OF .. e[QUEUE], row.seq, field)
    if e[LABELS] then each_label(e, 'ZADD', ROW_LABEL, row.seq, field) end
    if row.final then
      ended[#ended + 1], seqs[#seqs + 1] = e[ID], row.seq
    else
      later('ZADD', TRAIL .. e[ID], row.seq, field)
    end
  end
  -- An id may end more than once: its earlier ends go with its other rows.
  local before = get_many(ENDED, ended)
  for i = 1, #ended do
    if before[i] then later('ZADD', TRAIL .. ended[i], tonumber(before[i]), before[i]) end
    later('HSET', ENDED, ended[i], pad(seqs[i]))
  end
  rows = {}
end

local function write_dead()
  for i = 1, #exhumed do
    local e = exhumed[i]
    later('HDEL', DEAD, e[ID])
    later('ZREM', DEAD_OF .. e[QUEUE], e[ID])
    later('ZREM', DEAD_ORDER, e[ID])
    if e[LABELS] then each_label(e, 'ZREM', DEAD_LABEL, nil, e[ID]) end
    look(e[QUEUE])
  end
  for i = 1, #buried do
    local e = buried[i].e
    later('HSET', DEAD, e[ID], buried[i].text)
    later('ZADD', DEAD_OF .. e[QUEUE], e[SEQ], e[ID])
    later('ZADD', DEAD_ORDER, e[SEQ], e[ID])
    if e[LABELS] then each_label(e, 'ZADD', DEAD_LABEL, e[SEQ], e[ID]) end
  end
  exhumed, buried = {}, {}
end

local function flush()
  if #rows > 0 then write_rows() end
  if #exhumed > 0 or #buried > 0 then write_dead() end
  for i = 1, #changed do
    local id = changed[i]
    local old, new = was[id], live[id]
    if old ~= new then follow(id, old, new) end
  end
  for scope, hold in pairs(holds) do
    if hold then
      later('HSET', HOLDS, scope, hold)
      local ends = tonumber(string.match(hold, '^%d+'))
      if ends > 0 then later('ZADD', PERIODS, ends, scope) else later('ZREM', PERIODS, scope) end
    else
      later('HDEL', HOLDS, scope)
      later('ZREM', PERIODS, scope)
    end
  end
  for field, payload in pairs(payloads) do
    if payload then later('HSET', PAYLOADS, field, payload) else later('HDEL', PAYLOADS, field) end
  end
  for name, number in pairs(counters) do later('HSET', COUNTERS, name, format('%.0f', number)) end
  live, was, changed, raw, holds, payloads, counters = {}, {}, {}, {}, {}, {}, {}
  send()
  if next(freed) then
    unpark_freed()
    send()
  end
  if next(looks) or next(stale) then
    for name, nodes in pairs(looks) do
      local q = queue(name)
      for node in pairs(nodes) do settle_lane(name, q, node) end
    end
    for name in pairs(stale) do look(name) end
    for name in pairs(looks) do keep_queue(name, queue(name)) end
    looks, stale = {}, {}
    send()
  end
end

local function ring()
  if rings then call('SPUBLISH', P .. 'bell', '1') end
end
