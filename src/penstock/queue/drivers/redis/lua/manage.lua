-- Manage: how queues behave, their locks, schedules, subscriptions, nodes.

local manage = {}
local define = {}

function define.unpark_all(name, q)
  for _, group in ipairs(call('SMEMBERS', K['groups:'] .. name)) do
    local node, value = string.match(group, '^([^:]*):(.*)$')
    limit.unpark(name, q, node, value, 1000000)
  end
  q.parks = nil
  batch.send()
end

-- How many are in flight per label value, counted again.
function define.recount(name, q)
  call('DEL', K['inflight:'] .. name)
  if not q.limit then return end
  for _, key in ipairs(call('HKEYS', K.claims)) do
    local record = claims.read(key)
    for at = 1, record and record.queue == name and #record.seqs or 0, 6 do
      local e = entry.read(sub(record.seqs, at, at + 5))
      local value = e and limit.value(q, e)
      if value then call('HINCRBY', K['inflight:'] .. name, value, 1) end
    end
  end
end

function define.rate(q, new)
  if new[1] == 0 then
    q.rate = nil
    return
  end
  if q.rate and q.tat then q.tat = { q.tat[1], floor(q.tat[2] * new[1] / q.rate[1]) } end
  q.rate = new
end

function define.same(a, b) return a == b or (a and b and a[1] == b[1] and a[2] == b[2]) end

function define.limit(name, q)
  local wanted = request.limit[2] > 0 and request.limit or nil
  if define.same(wanted, q.limit) then return end
  define.unpark_all(name, q)
  q.limit = wanted
  define.recount(name, q)
  queue.stale[name] = true
end

function manage.define()
  local name = request.queue
  local q = queue.read(name)
  if request.fifo ~= nil and request.fifo ~= (q.fifo or false) then
    local held = call('ZCARD', K['live:'] .. name)
    if held > 0 then return { 0, 'holds', name, held } end
    q.fifo, q.held, q.lanes = request.fifo or nil, nil, {}
    queue.stale[name] = true
  end
  if request.rate and not define.same(request.rate, q.rate) then
    define.rate(q, request.rate)
    queue.stale[name] = true
  end
  if request.limit then define.limit(name, q) end
  if not q.defined and (request.fifo ~= nil or request.rate or request.limit) then
    q.defined, queue.stale[name] = true, true
  end
  if queue.stale[name] then
    queue.look_all(name, q)
    work.rings = true
    flush()
  end
  return { 1 }
end

-- --- locks -------------------------------------------------------------------------------------------

function manage.count_locks(name, q)
  local number = call('HLEN', K['locks:'] .. name)
  q.locks = number > 0 and number or nil
  queue.stale[name] = true
  queue.look_all(name, q)
  flush()
end

function manage.lock()
  local name, q = request.queue, queue.read(request.queue)
  local before = call('HGET', K['locks:'] .. name, request.holder)
  local since = before and decode(before)[1] or now
  call('HSET', K['locks:'] .. name, request.holder, pack({ since, request.reason }))
  manage.count_locks(name, q)
  return { 1 }
end

function manage.unlock()
  local name, q = request.queue, queue.read(request.queue)
  if call('HDEL', K['locks:'] .. name, request.holder) == 0 then return { 0 } end
  work.rings = true
  manage.count_locks(name, q)
  return { 1 }
end

-- --- schedules, subscriptions, nodes -------------------------------------------------------------------

function manage.set_schedule()
  local text = call('HGET', K.schedules, request.name)
  local stored = text and decode(text)
  if stored and stored[1] > request.version then return { 0 } end
  if not stored or stored[1] ~= request.version or stored[3] ~= request.definition then
    -- A new version changes what a schedule does, not that it is paused.
    local following = stored and stored[2] >= request.paused and stored[2] or request.next
    call('HSET', K.schedules, request.name, pack({ request.version, following, request.definition }))
  end
  return { 1 }
end

function manage.fire()
  local text = call('HGET', K.schedules, request.name)
  local stored = text and decode(text)
  if not stored or stored[1] ~= request.version or stored[2] ~= request.from then return { 0 } end
  if request.entry then
    local _, problem = try(put.entry, new_entry(request.entry), ARGS[3], false)
    if problem then return { -1, unpack(problem) } end
  end
  later('HSET', K.schedules, request.name, pack({ stored[1], request.next, stored[3] }))
  flush()
  return { 1 }
end

function manage.remove_schedule() return { call('HDEL', K.schedules, request.name) } end

function manage.subscribe()
  call('HSET', K.subscriptions, request.name, pack({ request.queue, request.types }))
  call('ZADD', K.subscribers, 0, request.name)
  return { 1 }
end

function manage.unsubscribe()
  call('ZREM', K.subscribers, request.name)
  return { call('HDEL', K.subscriptions, request.name) }
end

-- Letters that an earlier release numbered in the order of the puts: they keep it, before all that die from now on.
function manage.number_letters()
  local fields = call('ZRANGEBYSCORE', K.dead_all, '-inf', 0)
  for _, field in ipairs(fields) do
    local number, letter, e = next_number('dead'), call('HGET', K.dead, field), nil
    if letter then
      local _, text, node = history.read_letter(letter)
      e = entry.build(text, node)
    end
    if e then history.number(field, e, number) else later('ZADD', K.dead_all, number, field) end
  end
  flush()
  return { #fields }
end

function manage.beat()
  call('HSET', K.nodes, request.node, format('%.0f', now))
  return { 1 }
end

local function manage_all(keys, arguments)
  begin(keys, arguments)
  local before = reply.before()
  if before then return before end
  local result = manage[request.call]()
  ring()
  return reply.remember({ now, result })
end
