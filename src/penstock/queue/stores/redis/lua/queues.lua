-- Queues: where their waiting entries are, and the indexes that say which queue is to be looked at when.
--
-- A lane is a queue's entries for one node, or for any ('' as the node). A lane that has or will have something is in
-- an index of its node: `ready` by turn, or `opens` by the time at which it may give an entry; and in `suspects` by
-- the due time of its first suspect. So a claim costs per ready queue, not per queue.

-- By name: records that were read, those to be written, lanes to be looked at, label values that have room again, and
-- whether entries came back for it.
local queue = { known = {}, stale = {}, looks = {}, freed = {}, unparked = {} }

function queue.read(name)
  local q = queue.known[name]
  if not q then
    local text = call('HGET', K.queues, name)
    q = text and decode(text) or { lanes = {}, unknown = true }
    queue.known[name] = q
  end
  return q
end

function queue.read_many(names)
  local texts = #names > 1 and batch.get(K.queues, names) or {}
  for i = 1, #texts do
    if texts[i] and not queue.known[names[i]] then queue.known[names[i]] = decode(texts[i]) end
  end
end

function queue.lane(name, q, node)
  local lane = q.lanes[node]
  if not lane then
    lane = { p = {} } -- its priorities; besides: turn, at, sus as in the indexes, s if it has suspects
    q.lanes[node] = lane
    queue.stale[name] = true
  end
  return lane
end

-- The lane is to be looked at before the script ends; without a node, only whether the queue can be forgotten.
function queue.look(name, node)
  local nodes = queue.looks[name]
  if not nodes then
    nodes = {}
    queue.looks[name] = nodes
  end
  if node then nodes[node] = true end
end

function queue.look_all(name, q)
  queue.look(name, '')
  for node in pairs(q.lanes) do queue.look(name, node) end
end

function queue.key(name, e) return K.waiting .. ':' .. name .. ':' .. (e[NODE] or '') .. ':' .. e[PRIORITY] end

function queue.suspect_key(name, node) return K.suspect .. ':' .. name .. ':' .. node end

-- By due time in their set; which of those that are due is first, the priority in front of the member says.
function queue.suspect_member(e) return format('%03d', 100 - e[PRIORITY]) .. entry.member(e) end

function queue.add_priority(name, q, e)
  local lane = queue.lane(name, q, e[NODE] or '')
  local priorities, priority = lane.p, e[PRIORITY]
  for i = 1, #priorities do
    if priorities[i] == priority then return lane end
  end
  priorities[#priorities + 1] = priority
  table.sort(priorities, function(a, b) return a > b end)
  queue.stale[name] = true
  return lane
end

-- The entry at the head of a FIFO queue; what was deleted by hand is passed over.
function queue.head(name)
  while true do
    local id = call('ZRANGE', K.all .. ':' .. name, 0, 0)[1]
    if not id then return nil end
    local e = entry.parse(call('HGET', K.live, id))
    if e then return e end
    call('ZREM', K.all .. ':' .. name, id)
  end
end

-- --- limits --------------------------------------------------------------------------------------

-- GCRA with a burst of the full count. The theoretical arrival time is kept as whole microseconds and a fraction in
-- units of 1/count, so that nothing is rounded.
local rate = {}

function rate.opens(q)
  local count, period = q.rate[1], q.rate[2]
  local tat = q.tat or { 0, 0 }
  return tat[1] - floor((period * (count - 1) - tat[2]) / count)
end

function rate.room(q)
  if not q.rate then return math.huge end
  local count, period = q.rate[1], q.rate[2]
  local tat = q.tat or { 0, 0 }
  local ahead = tat[1] < now and 0 or (tat[1] - now) * count + tat[2]
  return max(0, floor((period * (count - 1) - ahead) / period) + 1)
end

function rate.spend(name, q, starts)
  if not q.rate then return end
  local count, period = q.rate[1], q.rate[2]
  local tat = q.tat or { 0, 0 }
  local whole, part = tat[1], tat[2]
  if whole < now then whole, part = now, 0 end
  part = part + starts * period
  q.tat = { whole + floor(part / count), part % count }
  queue.stale[name] = true
end

-- A queue may allow so many in flight per value of a label. An entry whose value is full is parked aside, so that a
-- backlog of it costs the next claims nothing; as many come back as the value has room.
local limit = {}

function limit.value(q, e)
  return q.limit and e[LABELS] and cjson.decode(e[LABELS])[q.limit[1]] or nil
end

function limit.in_flight(name, value) return tonumber(call('HGET', K.inflight .. ':' .. name, value)) or 0 end

function limit.count(name, value, by)
  local key = K.inflight .. ':' .. name
  if call('HINCRBY', key, value, by) <= 0 then call('HDEL', key, value) end
end

function limit.free(name, value)
  if not queue.freed[name] then queue.freed[name] = {} end
  queue.freed[name][value] = true
  work.rings = true
end

function limit.key(name, node, value) return K.parked .. ':' .. name .. ':' .. node .. ':' .. value end

-- It sorts as the entries are to be taken; the id begins after 3 + 18 + 15 places.
function limit.member(e) return format('%03d%018.0f', 100 - e[PRIORITY], e[DUE]) .. entry.member(e) end

function limit.park(name, q, e, value)
  local node = e[NODE] or ''
  e[PARKED] = value
  later('HSET', K.live, e[ID], entry.text(e))
  later('ZREM', queue.key(name, e), entry.member(e))
  later('ZADD', limit.key(name, node, value), 0, limit.member(e))
  later('SADD', K.groups .. ':' .. name, node .. ':' .. value)
  if not (q.parks and q.parks[node]) then
    q.parks = q.parks or {}
    q.parks[node] = true
    queue.stale[name] = true
  end
end

function limit.unpark(name, q, node, value, most)
  local key = limit.key(name, node, value)
  local members = call('ZRANGE', key, 0, most - 1)
  local ids = {}
  for i = 1, #members do ids[i] = sub(members[i], 37) end
  local texts = batch.get(K.live, ids)
  for i = 1, #members do
    later('ZREM', key, members[i])
    if texts[i] then
      local e = entry.parse(texts[i])
      e[PARKED] = false
      later('HSET', K.live, e[ID], entry.text(e))
      later('ZADD', queue.key(name, e), e[DUE], entry.member(e))
      queue.add_priority(name, q, e)
      work.rings = true
    end
  end
  if #members < most then later('SREM', K.groups .. ':' .. name, node .. ':' .. value) end
  if #members > 0 then
    queue.look(name, node)
    queue.unparked[name] = true
  end
end

function limit.unpark_freed()
  for name, values in pairs(queue.freed) do
    local q = queue.read(name)
    for value in pairs(values) do
      local room = q.limit and q.limit[2] - limit.in_flight(name, value) or 0
      if room > 0 then
        for node in pairs(q.parks or {}) do limit.unpark(name, q, node, value, room) end
      end
    end
  end
  queue.freed = {}
  batch.send()
end
