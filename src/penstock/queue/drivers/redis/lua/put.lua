-- Put: new entries, events for subscriptions, and what brings entries back with another content: update and replay.
--
-- A new entry is a list: id, queue, priority, due, delay, unique key, mode, what to do on conflict, period, expires,
-- expires in, node, whether it may have been sent before, labels, headers, codec, type; its payload is an argument.

local put = { full = false } -- full: the server has no room for anything new

local function new_entry(list)
  return {
    id = list[1], queue = list[2], priority = list[3], due = list[4], delay = list[5], unique = list[6] or false,
    mode = list[7] or false, conflict = list[8], period = list[9], expires = list[10], expires_in = list[11],
    node = list[12] or '', repeated = list[13], labels = list[14] or false, headers = list[15] or false,
    codec = list[16], type = list[17],
  }
end

function put.check_place(name, priority, node)
  if priority < -100 or priority > 100 then fail('priority', tostring(priority)) end
  if (priority ~= 0 or node ~= '') and queue.read(name).fifo then fail('fifo', name) end
end

function put.expiry(new) return new.expires_in and now + new.expires_in or new.expires or false end

function put.replace(e, new, payload, due)
  local other = entry.copy(e)
  other.codec, other.type, other.labels, other.headers = new.codec, new.type, new.labels, new.headers
  other.priority, other.first_priority, other.first_due = new.priority, new.priority, due
  other.due = e.due == HELD and HELD or due
  other.expires, other.error, other.suspect = put.expiry(new), false, false
  -- The rows of its earlier attempts stay apart from those to come.
  if e.attempt > 0 then other.generation = e.generation + 1 end
  other.attempt = 0
  entry.rewrite(other, payload, true)
  entry.change(packed(e.seq), other)
end

-- What a put gives whose unique id is taken: the holder and when it is due; nil when it is free.
function put.meet_holder(new, payload, due)
  local id = hold.holder(hold.scope(new.queue, new.unique))
  if not id then return nil end
  if new.conflict == 'raise' then fail('unique', new.queue, new.unique, id) end
  local e = entry.by_id(id)
  if not e then return { id, now } end -- it has ended, and its period still runs
  if new.conflict ~= 'replace' then return { id, e.due == HELD and e.first_due or e.due } end
  if e.claim then fail('unique', new.queue, new.unique, id) end
  put.replace(e, new, payload, due)
  return { id, due }
end

-- The row of the earlier end of an id that is used again.
function put.earlier_row(field)
  local state = call('HGET', K.states, field)
  local kind = state and sub(state, 1, 1)
  return (kind == 'H' or kind == 'D' or kind == 'G') and sub(state, 2)
end

function put.create(new, payload, due, earlier)
  local field = packed(next_number('seq'))
  local seq = number_of(field)
  local e = {
    id = new.id, queue = new.queue, codec = new.codec, type = new.type, labels = new.labels, headers = new.headers,
    unique = new.unique, mode = new.mode, created = now, first_due = due, expires = put.expiry(new),
    linked = new.linked or false, first_priority = new.priority, priority = new.priority,
    due = new.held and HELD or due, seq = seq, body = seq, attempt = 0,
    generation = 1, fence = 0, suspect = false, recorded = false, node = new.node, error = false,
    earlier = earlier,
  }
  entry.rewrite(e, payload, false)
  set(work.ids, e.id, field)
  entry.change(field, e)
end

-- Puts an entry: its due time if it is there now under its own id, or the id that stands for it and its due time.
function put.entry(new, payload, repeated)
  local field = entry.field(new.id)
  local known = field and (entry.read(field) or (repeated or new.repeated) and history.known(field))
  if known then
    local differs = not known.stripped and body.payload(known) ~= payload
    if known.queue ~= new.queue or differs then fail('conflict', new.id, known.queue) end
    return known.first_due
  end
  if put.full then fail('full') end
  put.check_place(new.queue, new.priority, new.node)
  if new.held and queue.read(new.queue).fifo then fail('held', new.queue) end
  local due = (new.due or now) + new.delay
  if new.unique then
    local met = put.meet_holder(new, payload, due)
    if met then return met end
    hold.take(hold.scope(new.queue, new.unique), new.id, new.mode == 'period' and now + new.period or 0)
  end
  put.create(new, payload, due, field and put.earlier_row(field))
  return due
end

-- --- many that need no looking after -------------------------------------------------------------------------

-- The step of a put whose entries have no labels, unique ids, nodes nor expiry, in one queue with one due time: queue,
-- priority, due, delay, where they begin among the arguments (id, then list and payload as in a body), how many.
function put.plain(step)
  local name, priority, due, delay, first, count = unpack(step, 2, 7)
  local q = queue.read(name)
  local ids = {}
  for i = 1, count do ids[i] = ARGS[first + 2 * i - 2] end
  if put.full or priority < -100 or priority > 100 or (q.fifo and priority ~= 0) or put.any_known(ids) then
    return put.plain_as_step(step)
  end
  due = (due or now) + delay
  local prefix = body.prefix(0, priority, now, due, 0)
  local head, due8 = char(100 - priority), time8(due)
  local last = put.draw(count)
  local live, ready_key = K['live:'] .. name, ready.key(name, '')
  for i = 1, count do
    local field, id = packed(last - count + i), ids[i]
    work.ids[id], work.bodies[field] = field, prefix .. ARGS[first + 2 * i - 1]
    later('HSET', K.ids, id, field)
    later('ZADD', live, 0, field)
    if q.fifo then
      later('ZADD', ready_key, 0, head .. field .. due8)
      later('ZADD', K['dues:'] .. name, due, field)
    else
      later('ZADD', ready_key, 0, head .. due8 .. field)
    end
  end
  put.mark_lane(name, q, due)
  return { due }
end

function put.mark_lane(name, q, due)
  local lane = queue.lane(name, q, '')
  local first = lane.serving or lane.opens or (q.fifo and lane.suspect)
  if not first or (due < first and not q.fifo) then queue.look(name, '') end
  if q.unknown then queue.stale[name] = true end
  work.rings = true
end

function put.draw(count)
  local last = work.counters.seq
  if not last then return call('HINCRBY', K.counters, 'seq', count) end
  work.counters.seq = last + count
  return last + count
end

function put.any_known(ids)
  local seen = {}
  for i = 1, #ids do
    if work.ids[ids[i]] or seen[ids[i]] then return true end
    seen[ids[i]] = true
  end
  local known = batch.get(K.ids, ids)
  for i = 1, #ids do
    if known[i] then return true end
  end
  return false
end

-- The same step the general way: ids that are known already are looked at one by one.
function put.plain_as_step(step)
  local name, priority, due, delay, first, count = unpack(step, 2, 7)
  local result, problem = try(function()
    local dues = {}
    for i = 1, count do
      local text = ARGS[first + 2 * i - 1]
      local size = sunpack('>I4', text)
      local meta = decode(sub(text, 5, 4 + size))
      local list = { meta[1], name, priority, due, delay, false, false, false, 0, false, false, false, false }
      list[14], list[15], list[16], list[17] = false, meta[6] or false, meta[3], meta[4]
      dues[i] = put.entry(new_entry(list), sub(text, 5 + size), false)
    end
    return { 1, dues, {} }
  end)
  return result or { 0, unpack(problem) }
end

-- Whether a queue takes plain entries of this due time without anything but the entry being written: it has no order,
-- and gives something earlier already.
function put.is_open(name, priority, due)
  if put.full or priority < -100 or priority > 100 then return false end
  local text = call('HGET', K.queues, name)
  local q = text and decode(text)
  local lane = q and not q.fifo and q.lanes['']
  local first = lane and (lane.serving or lane.opens)
  return first and due >= first
end

-- What programs do one by one: one plain entry. False, and nothing written, if its id is known.
function put.single(name, priority, due, id, text)
  local field = packed(call('HINCRBY', K.counters, 'seq', 1))
  if call('HSETNX', K.ids, id, field) == 0 then return false end
  call('HSET', K.entries, field, body.prefix(0, priority, now, due, 0) .. text)
  call('ZADD', K['live:'] .. name, 0, field)
  call('ZADD', ready.key(name, ''), 0, char(100 - priority) .. time8(due) .. field)
  call('SPUBLISH', K.bell, '1')
  return true
end

-- As settle tells of one call with one step.
function put.reply(result) return { now, { { {}, { result }, false, {} } } } end

-- Puts of plain entries and nothing else: the arguments are the time, queue, priority, due or '', delay, ids and texts.
local function put_plain(keys, arguments)
  look_around(keys, arguments)
  local name, priority = arguments[2], tonumber(arguments[3])
  local due, delay = tonumber(arguments[4]), tonumber(arguments[5])
  local count = (#arguments - 5) / 2
  local when = (due or now) + delay
  local at_once = count == 1 and put.is_open(name, priority, when)
  if at_once and put.single(name, priority, when, arguments[6], arguments[7]) then return put.reply({ when }) end
  reset()
  local result = put.plain({ 'put', name, priority, due, delay, 6, count })
  flush()
  ring()
  return put.reply(result)
end

-- --- events ------------------------------------------------------------------------------------------

-- The same parts always give the same id: a name-based UUID, as penstock.ids makes it.
function put.derived_id(event, name)
  local namespace = string.gsub(request.namespace, '..', function(digits) return char(tonumber(digits, 16)) end)
  local hex = redis.sha1hex(namespace .. event .. '\031' .. name)
  local variant = format('%x', 8 + tonumber(sub(hex, 17, 17), 16) % 4)
  return sub(hex, 1, 8) .. '-' .. sub(hex, 9, 12) .. '-5' .. sub(hex, 14, 16) .. '-' .. variant .. sub(hex, 18, 20)
    .. '-' .. sub(hex, 21, 32)
end

function put.subscriptions()
  local subscriptions = {}
  local names = call('ZRANGE', K.subscribers, 0, -1)
  local texts = batch.get(K.subscriptions, names)
  for i = 1, #names do
    local wants, text = {}, decode(texts[i])
    for _, type_name in ipairs(text[2]) do wants[type_name] = true end
    subscriptions[i] = { name = names[i], queue = text[1], wants = wants }
  end
  return subscriptions
end

-- The subscriptions that want an event.
function put.wanting(event)
  work.subscriptions = work.subscriptions or put.subscriptions()
  local wanting = {}
  for _, subscription in ipairs(work.subscriptions) do
    local wanted = false
    for _, type_name in ipairs(event[1]) do wanted = wanted or subscription.wants[type_name] end
    if wanted then wanting[#wanting + 1] = subscription end
  end
  return wanting
end

function put.publish(event, payload, repeated)
  local puts, template = {}, event[2]
  for _, subscription in ipairs(put.wanting(event)) do
    local new = new_entry(template)
    new.id, new.queue = put.derived_id(template[1], subscription.name), subscription.queue
    puts[#puts + 1] = { new.id, new.queue, put.entry(new, payload, repeated) }
  end
  return puts
end

-- --- update and replay -----------------------------------------------------------------------------------

function put.update(id, changes, payload, force)
  local e = entry.changeable(id, force)
  if changes.priority then
    if changes.priority < -100 or changes.priority > 100 then fail('priority', tostring(changes.priority)) end
    if changes.priority ~= 0 and queue.read(e.queue).fifo then fail('fifo', e.queue) end
  end
  local new = entry.given_back(e)
  if e.claim then
    history.passing(e, 'retried', 'taken away by an update')
    new.recorded, new.suspect = true, false -- its lease was voided, not reaped
  end
  local again = payload or changes.codec or changes.type or changes.labels ~= nil
  new.codec, new.type = changes.codec or new.codec, changes.type or new.type
  new.priority = changes.priority or new.priority
  if changes.labels ~= nil then new.labels = changes.labels end
  if changes.due or changes.delay then
    new.first_due = (changes.due or now) + (changes.delay or 0)
    new.due = e.due == HELD and HELD or new.first_due
  end
  if again or new.first_due ~= e.first_due then entry.rewrite(new, payload or body.payload(e), again) end
  entry.change(packed(e.seq), new)
  return { e.id, e.queue }
end

-- What an ended id was: its item, node and state; fails for what cannot come back.
function put.ended(id)
  local field = entry.field(id)
  local record, text, state = nil, nil, nil
  if field then record, text, state = history.last(field) end
  local node = record and record.node or ''
  if state and sub(state, 1, 1) == 'D' then
    local letter = call('HGET', K.dead, field)
    if letter then
      local _
      _, text, node = history.read_letter(letter)
    end
  end
  local e = text and sub(state, 1, 1) ~= 'G' and entry.build(text, node)
  if not e or e.stripped or not entry.covered(e.queue) then fail('unended', id) end
  return e, field, state
end

-- Same id, next generation, at the tail; its old body stays with the history.
function put.replay(id)
  local e, field, state = put.ended(id)
  if e.unique and e.mode ~= 'period' then
    -- A period counts from the put, whatever happens to the entry afterwards.
    local scope = hold.scope(e.queue, e.unique)
    local holding = hold.holder(scope)
    if holding and holding ~= id then fail('unique', e.queue, e.unique, holding) end
    hold.take(scope, id, 0)
  end
  local new = entry.copy(e)
  new.seq = next_number('seq')
  new.body, new.generation, new.attempt = new.seq, e.generation + 1, 0
  new.due, new.first_due, new.expires, new.error, new.suspect, new.recorded = now, now, false, false, false, false
  local wait = link.wait(id)
  if wait and wait[1] > 0 then -- those it waited for have not all ended
    if queue.read(e.queue).fifo then fail('held', e.queue) end
    new.due = HELD
  end
  new.first_priority = e.priority
  set(work.revived, #work.revived + 1, { id = id, e = e, field = field, state = state })
  entry.rewrite(new, body.payload(e), false)
  set(work.ids, id, packed(new.seq))
  entry.change(packed(new.seq), new)
  return e.queue
end

-- What is left of the ended ones that came back: their rows, and as long as there are any, their bodies.
function put.write_revived()
  for _, revived in ipairs(work.revived) do
    local key = sub(revived.state, 2)
    outcome.forget({ revived.id }) -- what it returned is not the result of the generation to come
    local recorded = call('HEXISTS', K.history, key) == 1
    if sub(revived.state, 1, 1) == 'D' then history.exhume(revived.e) end
    if recorded then
      later('HSET', K.states, revived.field, 'H' .. key)
      later('ZADD', K['trail:'] .. revived.id, 0, key)
    else
      later('HDEL', K.states, revived.field)
      later('HDEL', K.entries, packed(revived.e.body))
    end
  end
end
