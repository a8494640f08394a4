-- Queues: their records, where their waiting entries are, and which of them have something to give.
--
-- A lane is a queue's entries for one node, or for any ('' as the node): one sorted set, `ready:<queue>[:<node>]`, and
-- one for suspects. A lane that has or will have something is in an index of its node: `serving` by when it was last
-- served, or `opening` by when it may give an entry; and in `suspected` by when its first suspect is due. So a claim
-- costs per ready queue, not per queue.

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
    lane = { x = 0 } -- serving, opens, suspect as in the indexes; x keeps an empty one a map when it is packed
    q.lanes[node] = lane
    queue.stale[name] = true
  end
  return lane
end

-- The lane is to be looked at before the call ends; without a node, only whether the queue can be forgotten.
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

-- The entry at the head of a FIFO queue; what was deleted by hand is passed over.
function queue.head(name)
  local key = K['ready:'] .. name
  while true do
    local member = call('ZRANGE', key, 0, 0)[1]
    if not member then return nil end
    local text = item.of_member(member, true)
    local e = entry.build(text, '')
    if e then return e end
    call('ZREM', key, member)
    queue.forget(name, sub(text, 10, 15))
  end
end

-- What was deleted by hand leaves nothing behind.
function queue.forget(name, field)
  later('ZREM', K['live:'] .. name, field)
  later('ZREM', K['dues:'] .. name, field)
  later('ZREM', K['retrying:'] .. name, field)
  later('HDEL', K.states, field)
  later('HDEL', K.errors, field)
  queue.look(name)
end

-- --- sorted sets of waiting entries ---------------------------------------------------------------------

local ready = {}

function ready.key(name, node) return node == '' and K['ready:'] .. name or K['ready:'] .. name .. ':' .. node end

function ready.suspect_key(name, node) return K['suspect:'] .. name .. ':' .. node end

-- The first member of the priority after this one, or of all.
function ready.first(key, priority)
  if not priority then return call('ZRANGE', key, 0, 0)[1] end
  return call('ZRANGEBYLEX', key, '[' .. char(priority + 1), '+', 'LIMIT', 0, 1)[1]
end

function ready.due_of(member) return time_of(member, 2) end

-- When the first of a set is due, over all priorities: one that is due later hides nothing.
function ready.first_due(key)
  local soonest
  local member = ready.first(key)
  while member do
    soonest = min(soonest or math.huge, ready.due_of(member))
    member = ready.first(key, byte(member))
  end
  return soonest
end

-- Up to `most` due members, by priority, due and sequence.
function ready.due(key, most)
  local after = time8(now + 1)
  local member, members = ready.first(key), {}
  while member do
    if ready.due_of(member) <= now then
      local priority = sub(member, 1, 1)
      local page = call('ZRANGEBYLEX', key, '[' .. priority, '(' .. priority .. after, 'LIMIT', 0, most - #members)
      if #members == 0 then
        members = page
      else
        for i = 1, #page do members[#members + 1] = page[i] end
      end
      if #members >= most then break end
    end
    member = ready.first(key, byte(member))
  end
  return members
end

function ready.due_count(key)
  local after, count = time8(now + 1), 0
  local member = ready.first(key)
  while member do
    local priority = sub(member, 1, 1)
    count = count + call('ZLEXCOUNT', key, '[' .. priority, '(' .. priority .. after)
    member = ready.first(key, byte(member))
  end
  return count
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

function limit.value(q, e) return q.limit and e.labels and e.labels[q.limit[1]] or nil end

function limit.in_flight(name, value) return tonumber(call('HGET', K['inflight:'] .. name, value)) or 0 end

function limit.count(name, value, by)
  local key = K['inflight:'] .. name
  if call('HINCRBY', key, value, by) <= 0 then call('HDEL', key, value) end
end

function limit.free(name, value)
  if not queue.freed[name] then queue.freed[name] = {} end
  queue.freed[name][value] = true
  work.rings = true
end

function limit.key(name, node, value) return K['parked:'] .. name .. ':' .. node .. ':' .. value end

function limit.park(name, q, e, value)
  local text = item.text(e)
  local member = item.member(text)
  later('HSET', K.states, packed(e.seq), 'P' .. text .. e.node)
  later('ZREM', ready.key(name, e.node), member)
  later('ZADD', limit.key(name, e.node, value), 0, member)
  later('SADD', K['groups:'] .. name, e.node .. ':' .. value)
  if not (q.parks and q.parks[e.node]) then
    q.parks = q.parks or {}
    q.parks[e.node] = true
    queue.stale[name] = true
  end
end

function limit.unpark(name, q, node, value, most)
  local key = limit.key(name, node, value)
  local members = call('ZRANGE', key, 0, most - 1)
  for i = 1, #members do
    local text = item.of_member(members[i])
    later('ZREM', key, members[i])
    later('HSET', K.states, sub(text, 10, 15), 'W' .. text .. node)
    later('ZADD', ready.key(name, node), 0, members[i])
    queue.lane(name, q, node)
    work.rings = true
  end
  if #members < most then later('SREM', K['groups:'] .. name, node .. ':' .. value) end
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
