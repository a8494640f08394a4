-- Steps: endings, puts and events that happen together or not at all.
--
-- An ending is a list: id, token, outcome, start, due, delay, error. A new entry is one, too; new[N.KEY] stands for
-- the number of that field.

local steps = { full = false } -- the server has no room for anything new

function steps.give_back(e, token, outcome, started, due, delay, err)
  local new = entry.given_back(e)
  if err then new[ERROR] = err end
  new[SETTLED] = entry.settlements(e, token, outcome)
  if outcome == 'retry' then
    ended.record(e, 'retried', err, started, true, false)
    new[DUE], new[SUSPECT] = due or now + delay, false
  elseif outcome == 'snooze' then
    new[DUE], new[SUSPECT], new[ATTEMPT] = due or now + delay, false, e[ATTEMPT] - 1
  else
    -- As if never claimed; so a suspect stays one, nothing has cleared it.
    new[ATTEMPT] = e[ATTEMPT] - 1
  end
  entry.change(e[ID], new)
end

function steps.apply_ending(ending)
  local id, token, outcome, started, due, delay, err = unpack(ending, 1, 7)
  local e = entry.held(id, token)
  if not e then fail('lost', id) end
  if outcome == 'done' or outcome == 'dead' then
    ended.finish(e, outcome, err, started, true)
  else
    steps.give_back(e, token, outcome, started, due, delay, err)
  end
end

-- --- puts --------------------------------------------------------------------------------------------

function steps.check_place(name, priority, node)
  if priority < -100 or priority > 100 then fail('priority', tostring(priority)) end
  if (priority ~= 0 or node) and queue.read(name).fifo then fail('fifo', name) end
end

function steps.expiry(new) return new[N.EXPIRES_IN] and now + new[N.EXPIRES_IN] or new[N.EXPIRES] or false end

function steps.replace(e, new, payload, due)
  local other = entry.copy(e)
  other[CODEC], other[TYPE] = new[N.CODEC], new[N.TYPE]
  other[LABELS], other[HEADERS] = new[N.LABELS] or false, new[N.HEADERS] or false
  other[PRIORITY], other[DUE], other[FIRST_DUE] = new[N.PRIORITY], due, due
  other[EXPIRES], other[ERROR], other[SUSPECT] = steps.expiry(new), false, false
  -- The rows of its earlier attempts stay apart from those to come.
  if e[ATTEMPT] > 0 then other[GENERATION] = e[GENERATION] + 1 end
  other[ATTEMPT] = 0
  set(work.payloads, pad(e[SEQ]), payload)
  entry.change(e[ID], other)
end

-- What a put gives whose unique id is taken: the holder and when it is due; nil when it is free.
function steps.meet_holder(new, payload, due)
  local name, key, how = new[N.QUEUE], new[N.KEY], new[N.CONFLICT]
  local id = hold.holder(hold.scope(name, key))
  if not id then return nil end
  if how == 'raise' then fail('unique', name, key, id) end
  local e = entry.read(id)
  if not e then return { id, now } end -- it has ended, and its period still runs
  if how ~= 'replace' then return { id, e[DUE] } end
  if e[NONCE] then fail('unique', name, key, id) end
  steps.replace(e, new, payload, due)
  return { id, due }
end

-- Puts an entry: its due time if it is there now under its own id, or the id that stands for it and its due time.
function steps.put(new, payload, repeated)
  local id, name, key = new[N.ID], new[N.QUEUE], new[N.KEY]
  local known = entry.read(id)
  if not known and (repeated or new[N.REPEAT]) then
    local _, before = ended.last(id)
    known = before
  end
  if known then
    local theirs = entry.payload(known)
    if known[QUEUE] ~= name or (theirs and theirs ~= payload) then fail('conflict', id, known[QUEUE]) end
    return known[FIRST_DUE]
  end
  if steps.full then fail('full') end
  steps.check_place(name, new[N.PRIORITY], new[N.NODE])
  local due = (new[N.DUE] or now) + new[N.DELAY]
  if key then
    local met = steps.meet_holder(new, payload, due)
    if met then return met end
    hold.take(hold.scope(name, key), id, new[N.MODE] == 'period' and now + new[N.PERIOD] or 0)
  end
  local seq = entry.next_number('seq')
  set(work.payloads, pad(seq), payload)
  entry.change(id, {
    id, name, new[N.NODE] or false, seq, new[N.PRIORITY], now, due, due, steps.expiry(new), 0, 1, 0, false, false,
    new[N.LABELS] or false, new[N.HEADERS] or false, key or false, new[N.MODE] or false, false,
    new[N.CODEC], new[N.TYPE], false, false, false, false, false,
  })
  return due
end

-- --- events ------------------------------------------------------------------------------------------

-- The same parts always give the same id: a name-based UUID, as penstock.ids makes it.
function steps.derived_id(event, name)
  local namespace = string.gsub(request.namespace, '..', function(digits) return string.char(tonumber(digits, 16)) end)
  local hex = redis.sha1hex(namespace .. event .. '\031' .. name)
  local variant = format('%x', 8 + tonumber(sub(hex, 17, 17), 16) % 4)
  return sub(hex, 1, 8) .. '-' .. sub(hex, 9, 12) .. '-5' .. sub(hex, 14, 16) .. '-' .. variant .. sub(hex, 18, 20)
    .. '-' .. sub(hex, 21, 32)
end

function steps.subscriptions()
  local found = {}
  local names = call('ZRANGE', K.subscribers, 0, -1)
  local texts = batch.get(K.subscriptions, names)
  for i = 1, #names do
    local wants, kept = {}, decode(texts[i])
    for _, type_name in ipairs(kept[2]) do wants[type_name] = true end
    found[i] = { name = names[i], queue = kept[1], wants = wants }
  end
  return found
end

-- The subscriptions that want an event.
function steps.wanting(event)
  steps.subscribed = steps.subscribed or steps.subscriptions()
  local found = {}
  for _, one in ipairs(steps.subscribed) do
    local wanted = false
    for _, type_name in ipairs(event[1]) do wanted = wanted or one.wants[type_name] end
    if wanted then found[#found + 1] = one end
  end
  return found
end

function steps.publish(event, payload, repeated)
  local made, template = {}, event[2]
  for _, one in ipairs(steps.wanting(event)) do
    local new = { unpack(template, 1, 17) }
    new[N.ID], new[N.QUEUE] = steps.derived_id(template[N.ID], one.name), one.queue
    made[#made + 1] = { new[N.ID], one.queue, steps.put(new, payload, repeated) }
  end
  return made
end

-- --- steps -------------------------------------------------------------------------------------------

-- A step: whether it is a repeat, endings, puts, events, and where its payloads begin among the arguments.
function steps.apply(step)
  local repeated, endings, news, events, first = unpack(step, 1, 5)
  local puts, published = {}, {}
  for i = 1, #endings do steps.apply_ending(endings[i]) end
  for i = 1, #news do puts[i] = steps.put(news[i], ARGV[first + i - 1], repeated) end
  first = first + #news
  for i = 1, #events do published[i] = steps.publish(events[i], ARGV[first + i - 1], repeated) end
  return { 1, puts, published }
end

-- Whether this very ending happened before: said by the live entry, the last row, or the dead letter.
function steps.was_settled(id, token, outcome)
  local e = entry.read(id)
  if e then return entry.has_settled(e, token, outcome) end
  local head, before = ended.last(id)
  if not head then return false end
  if head[6] and head[1] == outcome and entry.token(before) == token then return true end
  -- What ended by itself, without its worker, keeps what was last settled before.
  return entry.has_settled(before, token, outcome)
end

-- An entry that was put before, living or ended.
function steps.known(id)
  local e = entry.read(id)
  if e then return e end
  local _, before = ended.last(id)
  return before
end

-- What the puts of an event gave that happened before; who subscribed since got nothing of it.
function steps.recall_event(event)
  local made = {}
  for _, one in ipairs(steps.wanting(event)) do
    local id = steps.derived_id(event[2][N.ID], one.name)
    local known = steps.known(id)
    if known then made[#made + 1] = { id, one.queue, known[FIRST_DUE] } end
  end
  return made
end

-- What a step gave when it happened already: none of its leases is held, and what it left behind is there.
function steps.done_before(step)
  local endings, news, events = step[2], step[3], step[4]
  local settled, own, missing, puts, published = false, false, false, {}, {}
  for i = 1, #endings do
    local id, token, outcome = endings[i][1], endings[i][2], endings[i][3]
    if entry.held(id, token) then return nil end
    settled = settled or steps.was_settled(id, token, outcome)
  end
  -- Only this very step can have put an id that was made for it.
  for i, new in ipairs(news) do
    local known = steps.known(new[N.ID])
    own = own or (known and not new[N.REPEAT])
    missing = missing or not (known or new[N.KEY])
    puts[i] = known and known[FIRST_DUE] or { new[N.ID], now }
  end
  for i, event in ipairs(events) do
    published[i] = steps.recall_event(event)
    own = own or (#published[i] > 0 and not event[2][N.REPEAT])
  end
  -- The same lease may have come with another step: a unit whose commit was in doubt is rolled back.
  if not own and (missing or not settled) then return nil end
  if #endings > 0 then
    local text = work.receipts[endings[1][1]] or call('HGET', K.receipts, endings[1][1])
    local receipt = text and decode(text)
    if receipt and receipt[1] == endings[1][2] then
      local same = #receipt[2][2] == #news and #receipt[2][3] == #events
      return same and receipt[2] or nil
    end
  end
  return { 1, puts, published }
end

-- Ends an entry as done: what workers send by the hundred.
function steps.succeed(id, its_token, started)
  local text = work.live[id] == nil and work.texts[id]
  if text then
    local fence, attempt, claimed, _, care, name, nonce = struct.unpack(entry.prefix, text)
    if fence .. '-' .. nonce ~= its_token or nonce == '' then return { 0, 'lost', id } end
    local q = queue.read(name)
    if care == 0 and not q.fifo and not q.limit then
      local seq = entry.next_number('row')
      local field = pad(seq)
      local row = ended.text(text, 'done', started or claimed, false, attempt, true)
      work.live[id], work.done[id] = false, row
      later('HDEL', K.live, id)
      later('ZREM', K.leases, id)
      later('ZREM', K.all .. ':' .. name, id)
      later('HSET', K.rows, field, row)
      later('ZADD', K.history .. ':' .. name, seq, field)
      write.last(id, field)
      queue.look(name)
      return 1
    end
  end
  local e = entry.held(id, its_token)
  if not e then return { 0, 'lost', id } end
  ended.finish(e, 'done', nil, started, true)
  return 1
end

-- A plain success is id, token and start; all else is a whole step. The result; or 0 and the problem.
function steps.take(step)
  if type(step[1]) == 'string' then return steps.succeed(step[1], step[2], step[3]) end
  local endings = step[2]
  local before = step[1] and steps.done_before(step)
  if before then return before end
  local result, problem = try(steps.apply, step)
  if not result then return { 0, unpack(problem) } end
  if #endings > 0 and #step[3] + #step[4] > 0 then
    -- A repeat is answered with what the step gave, whatever has become of its puts since.
    work.receipts[endings[1][1]] = pack({ endings[1][2], result })
  end
  return result
end

-- All entries that the steps name, in one go.
function steps.read_ahead(all)
  local ids = {}
  for i = 1, #all do
    local step = all[i]
    if type(step[1]) == 'string' then
      ids[#ids + 1] = step[1]
    else
      for n = 1, #step[2] do ids[#ids + 1] = step[2][n][1] end
      for n = 1, #step[3] do ids[#ids + 1] = step[3][n][N.ID] end
    end
  end
  local texts = batch.get(K.live, ids)
  for i = 1, #ids do work.texts[ids[i]] = texts[i] end
end

local take_claim -- claims.lua, where there is one
