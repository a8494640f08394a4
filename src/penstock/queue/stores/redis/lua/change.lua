-- What people do to entries: cancel, update, replay. All of a call or none of it.

local scope = request.scope

local function covers(name)
  if not scope then return true end
  if scope.family then return sub(name, 1, #scope.name) == scope.name end
  return name == scope.name
end

local function changeable(id)
  local e = entry.read(id)
  if not e or not covers(e[QUEUE]) then fail('missing', id) end
  if e[NONCE] and not request.force then fail('leased', id, e[QUEUE], e[OWNER]) end
  return e
end

local function was_cancelled(id)
  if entry.read(id) then return false end
  local head = ended.last(id)
  return head and head[1] == 'cancelled'
end

local function cancel()
  local gone = {}
  for _, id in ipairs(request.ids) do
    if not was_cancelled(id) then
      local e = changeable(id)
      ended.finish(e, 'cancelled')
      gone[#gone + 1] = id
      gone[#gone + 1] = e[QUEUE]
    end
  end
  return gone
end

local function update()
  local e = changeable(request.ids[1])
  local changes = request.changes
  if changes.priority then
    if changes.priority < -100 or changes.priority > 100 then fail('priority', tostring(changes.priority)) end
    if changes.priority ~= 0 and queue.read(e[QUEUE]).fifo then fail('fifo', e[QUEUE]) end
  end
  local new = entry.given_back(e)
  if e[NONCE] then
    ended.record(e, 'retried', 'taken away by an update')
    new[SUSPECT] = false -- its lease was voided, not reaped
  end
  new[CODEC], new[TYPE] = changes.codec or new[CODEC], changes.type or new[TYPE]
  new[PRIORITY] = changes.priority or new[PRIORITY]
  if changes.labels ~= nil then new[LABELS] = changes.labels end
  if changes.due or changes.delay then
    new[DUE] = (changes.due or now) + (changes.delay or 0)
    new[FIRST_DUE] = new[DUE]
  end
  if ARGV[4] then set(work.payloads, pad(e[SEQ]), ARGV[4]) end
  entry.change(e[ID], new)
  return { e[ID], e[QUEUE] }
end

local function revive(id)
  local letter = call('HGET', K.dead, id)
  local head, e
  if letter then head, e = ended.parse(letter) else head, e = ended.last(id) end
  -- A dead entry's payload is the dead letter's: purged is purged, though its row is still there.
  if not e or (head[1] == 'dead' and not letter) or not covers(e[QUEUE]) then fail('unended', id) end
  local payload = entry.payload(e)
  if not payload then fail('unended', id) end
  local new = entry.given_back(e)
  if head[6] then new[SETTLED] = entry.settlements(e, entry.token(e), head[1]) end -- a repeat of that is still known
  if e[UNIQUE] and e[MODE] ~= 'period' then
    -- A period counts from the put, whatever happens to the entry afterwards.
    local holding = hold.holder(hold.scope(e[QUEUE], e[UNIQUE]))
    if holding and holding ~= id then fail('unique', e[QUEUE], e[UNIQUE], holding) end
    set(work.holds, hold.scope(e[QUEUE], e[UNIQUE]), '0 ' .. id)
  end
  if letter then
    set(work.exhumed, #work.exhumed + 1, e)
    set(work.payloads, pad(e[SEQ]), false)
  end
  new[SEQ], new[GENERATION], new[ATTEMPT] = entry.next_number('seq'), e[GENERATION] + 1, 0
  new[DUE], new[FIRST_DUE], new[EXPIRES], new[ERROR], new[SUSPECT] = now, now, false, false, false
  set(work.payloads, pad(new[SEQ]), payload)
  entry.change(id, new)
  return e[QUEUE]
end

local function replay()
  local replayed = {}
  for _, id in ipairs(request.ids) do
    if not entry.read(id) then
      local name = revive(id)
      replayed[#replayed + 1] = id
      replayed[#replayed + 1] = name
    end
  end
  return replayed
end

if batch.begin() and request.call ~= 'cancel' then return { now, { 0, 'full' } } end
local done, problem = try(({ cancel = cancel, update = update, replay = replay })[request.call])
if problem then return { now, { 0, unpack(problem) } } end
flush()
ring()
return remember({ now, done })
