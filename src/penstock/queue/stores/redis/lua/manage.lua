-- What is kept of queues besides entries: definitions, locks, counts; and schedules, subscriptions, nodes.

-- --- definitions -------------------------------------------------------------------------------------

local function unpark_all(name, q)
  for _, group in ipairs(call('SMEMBERS', K.groups .. ':' .. name)) do
    local node, value = string.match(group, '^([^:]*):(.*)$')
    limit.unpark(name, q, node, value, 1000000)
  end
  q.parks = nil
  batch.send()
end

local function recount(name, q)
  call('DEL', K.inflight .. ':' .. name)
  if not q.limit then return end
  for _, id in ipairs(call('ZRANGE', K.leases, 0, -1)) do
    local e = entry.read(id)
    local value = e and e[QUEUE] == name and e[NONCE] and limit.value(q, e)
    if value then call('HINCRBY', K.inflight .. ':' .. name, value, 1) end
  end
end

local function set_rate(q, new)
  if new[1] == 0 then
    q.rate = nil
    return
  end
  if q.rate and q.tat then q.tat = { q.tat[1], floor(q.tat[2] * new[1] / q.rate[1]) } end
  q.rate = new
end

local function same(a, b) return a == b or (a and b and a[1] == b[1] and a[2] == b[2]) end

local function define()
  local name = request.queue
  local q = queue.read(name)
  if request.fifo ~= nil and request.fifo ~= (q.fifo or false) then
    local number = call('ZCARD', K.all .. ':' .. name)
    if number > 0 then return { 0, 'holds', name, number } end
    q.fifo, q.held, q.lanes = request.fifo or nil, nil, {}
    queue.stale[name] = true
  end
  if request.rate and not same(request.rate, q.rate) then
    set_rate(q, request.rate)
    queue.stale[name] = true
  end
  local wanted = request.limit and request.limit[2] > 0 and request.limit or nil
  if request.limit and not same(wanted, q.limit) then
    q.limit = wanted
    unpark_all(name, q)
    recount(name, q)
    queue.stale[name] = true
  end
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

local function note_locks(name, q)
  local number = call('HLEN', K.locks .. ':' .. name)
  q.locks = number > 0 and number or nil
  queue.stale[name] = true
  queue.look_all(name, q)
  flush()
end

local function lock()
  local name, q = request.queue, queue.read(request.queue)
  local before = call('HGET', K.locks .. ':' .. name, request.holder)
  local since = before and decode(before)[1] or now
  call('HSET', K.locks .. ':' .. name, request.holder, pack({ since, request.reason }))
  note_locks(name, q)
  return { 1 }
end

local function unlock()
  local name, q = request.queue, queue.read(request.queue)
  if call('HDEL', K.locks .. ':' .. name, request.holder) == 0 then return { 0 } end
  work.rings = true
  note_locks(name, q)
  return { 1 }
end

local function locks_of(name)
  local kept = call('HGETALL', K.locks .. ':' .. name)
  local found = {}
  for i = 1, #kept, 2 do
    local since, reason = unpack(decode(kept[i + 1]))
    found[#found + 1] = { name, kept[i], reason, since }
  end
  return found
end

local function names_asked_for()
  if request.queue then return { request.queue } end
  local names, prefix = {}, request.family or ''
  for _, name in ipairs(call('HKEYS', K.queues)) do
    if sub(name, 1, #prefix) == prefix then names[#names + 1] = name end
  end
  return names
end

local function locks()
  local found = {}
  for _, name in ipairs(names_asked_for()) do
    if request.queue or queue.read(name).locks then
      for _, one in ipairs(locks_of(name)) do found[#found + 1] = one end
    end
  end
  return found
end

-- --- counts --------------------------------------------------------------------------------------------

local function count_lanes(name, q)
  local ready, waiting, oldest = 0, 0, nil
  local function add(key)
    ready = ready + call('ZCOUNT', key, '-inf', now)
    waiting = waiting + call('ZCARD', key)
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if first and tonumber(first) <= now then oldest = min(oldest or tonumber(first), tonumber(first)) end
  end
  for node, lane in pairs(q.lanes) do
    for _, priority in ipairs(lane.p) do add(K.waiting .. ':' .. name .. ':' .. node .. ':' .. priority) end
    if lane.s then add(K.suspect .. ':' .. name .. ':' .. node) end
  end
  for _, group in ipairs(q.limit and call('SMEMBERS', K.groups .. ':' .. name) or {}) do
    local key = K.parked .. ':' .. name .. ':' .. group
    local number = call('ZCARD', key)
    -- Only what was due is parked.
    ready, waiting = ready + number, waiting + number
    -- They lie there by priority first; beyond some thousands the oldest is near enough.
    for _, one in ipairs(call('ZRANGE', key, 0, 4999)) do
      local due = tonumber(sub(one, 4, 21))
      oldest = min(oldest or due, due)
    end
  end
  return ready, waiting, oldest
end

local function count(name)
  local q = queue.read(name)
  local all = call('ZCARD', K.all .. ':' .. name)
  local retrying = call('ZCOUNT', K.retrying .. ':' .. name, format('(%.0f', now), '+inf')
  local ready, waiting, oldest = count_lanes(name, q)
  local delayed, leased = waiting - ready - retrying, all - waiting
  local dead = call('ZCARD', K.dead .. ':' .. name)
  return { name, ready, delayed, retrying, leased, dead, oldest or false, q.fifo and 1 or 0, locks_of(name) }
end

local function counts()
  local found = {}
  for _, name in ipairs(names_asked_for()) do found[#found + 1] = count(name) end
  return found
end

-- Names in their order, for pages. Where the two do not agree (another version wrote, or a hand deleted), it is made anew.
local function page()
  if call('ZCARD', K.names) ~= call('HLEN', K.queues) then
    call('DEL', K.names)
    for _, name in ipairs(call('HKEYS', K.queues)) do call('ZADD', K.names, 0, name) end
  end
  local prefix, after = request.prefix, request.after
  local from = after >= prefix and '(' .. after or '[' .. prefix
  if from == '[' or from == '(' then from = '-' end
  local to = prefix ~= '' and '[' .. prefix .. '\255' or '+'
  local found = {}
  for _, name in ipairs(call('ZRANGEBYLEX', K.names, from, to, 'LIMIT', 0, request.limit)) do
    found[#found + 1] = count(name)
  end
  return found
end

-- --- schedules, subscriptions, nodes -------------------------------------------------------------------

local function set_schedule()
  local text = call('HGET', K.schedules, request.name)
  local stored = text and decode(text)
  if stored and stored[1] > request.version then return { 0 } end
  if not stored or stored[1] ~= request.version or stored[3] ~= request.definition then
    call('HSET', K.schedules, request.name, pack({ request.version, request.next, request.definition }))
  end
  return { 1 }
end

local function fire()
  local text = call('HGET', K.schedules, request.name)
  local stored = text and decode(text)
  if not stored or stored[1] ~= request.version or stored[2] ~= request.from then return { 0 } end
  if request.entry then
    steps.full = batch.begin()
    local _, problem = try(steps.put, request.entry, ARGV[4], false)
    if problem then return { -1, unpack(problem) } end
  end
  later('HSET', K.schedules, request.name, pack({ stored[1], request.next, stored[3] }))
  flush()
  return { 1 }
end

local function subscribe()
  call('HSET', K.subscriptions, request.name, pack({ request.queue, request.types }))
  call('ZADD', K.subscribers, 0, request.name)
  return { 1 }
end

local function unsubscribe()
  call('ZREM', K.subscribers, request.name)
  return { call('HDEL', K.subscriptions, request.name) }
end

local function remove_schedule() return { call('HDEL', K.schedules, request.name) } end

local function beat()
  call('HSET', K.nodes, request.node, format('%.0f', now))
  return { 1 }
end

local function documents()
  local found, prefix = {}, request.prefix
  local names = call('ZRANGEBYSCORE', K.documented, request.since, '+inf')
  for _, name in ipairs(names) do
    if sub(name, 1, #prefix) == prefix then
      found[#found + 1] = { name, call('HGET', K.documents, name) }
    end
  end
  return found
end

local calls = {
  define = define, lock = lock, unlock = unlock, locks = locks, counts = counts, page = page, set_schedule = set_schedule,
  fire = fire, subscribe = subscribe, unsubscribe = unsubscribe, remove_schedule = remove_schedule, beat = beat,
  documents = documents,
}
local done = calls[request.call]()
ring()
return remember({ now, done })
