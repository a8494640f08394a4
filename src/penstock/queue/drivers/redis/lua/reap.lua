-- Reap: leases are prolonged, or taken back when they ran out; expired entries end, sticky ones are freed, history is
-- pruned.

local RAN_OUT = 'lease ran out'
local reap = {}

-- --- extending ---------------------------------------------------------------------------------------------

-- Per lease its new end, or 0 for one that is lost; and the packed numbers by the record that holds them.
function reap.group(leases)
  local ends, groups = {}, {}
  for i, lease in ipairs(leases) do
    local field = lease[1] and packed(lease[1]) or entry.field(lease[2])
    local record = field and claims.holding(field, lease[3])
    ends[i] = record and now + request.lease or 0
    if record then
      local group = groups[record.key] or { record = record, fields = {}, seen = {} }
      groups[record.key] = group
      if not group.seen[field] then
        group.seen[field] = true
        group.fields[#group.fields + 1] = field
      end
    end
  end
  return ends, groups
end

-- A claim of which only some are named is split: the others run out.
local function extend(keys, arguments)
  begin(keys, arguments)
  local ends, groups = reap.group(request.leases)
  local new_end = now + request.lease
  for key, group in pairs(groups) do
    local old_end = tonumber(call('ZSCORE', K['until'], key)) or 0
    -- A heartbeat must not shorten what a handler asked for.
    if new_end > old_end then
      local record = group.record
      if 6 * #group.fields < #record.seqs then record = claims.split(record, group.fields) end
      later('ZADD', K['until'], new_end, record.key)
    end
  end
  flush()
  return { now, ends }
end

-- --- the reaper --------------------------------------------------------------------------------------------

local function tell(list, e)
  list[#list + 1] = e.id
  list[#list + 1] = e.queue
end

-- A leased entry that was deleted by hand: the FIFO queue that waits for its end is let go.
function reap.forget(record, field)
  claims.remove(record, field)
  queue.forget(record.queue, field)
  local q = queue.read(record.queue)
  if q.held == number_of(field) then
    q.held = nil
    queue.stale[record.queue] = true
    queue.look(record.queue, '')
    work.rings = true
  end
end

function reap.take_back(e, reaped, dead)
  local most = e.claim.most
  if most and e.attempt >= most then
    history.finish(e, 'dead', RAN_OUT)
    tell(dead, e)
    return
  end
  history.passing(e, 'reaped', RAN_OUT)
  local new = entry.given_back(e)
  new.due, new.error, new.suspect, new.recorded = now, RAN_OUT, true, true
  entry.change(packed(e.seq), new)
  tell(reaped, e)
end

function reap.leases(reaped, dead)
  local left = request.limit
  for _, key in ipairs(call('ZRANGEBYSCORE', K['until'], '-inf', now, 'LIMIT', 0, request.limit)) do
    local record = claims.read(key)
    if not record then
      later('ZREM', K['until'], key)
    else
      local seqs = record.seqs
      for at = 1, min(#seqs, 6 * left), 6 do
        local field = sub(seqs, at, at + 5)
        local e = entry.read(field)
        if e and e.claim == record then reap.take_back(e, reaped, dead) else reap.forget(record, field) end
        left = left - 1
      end
    end
    if left < 1 then break end
  end
  flush()
end

function reap.expired(expired)
  for _, field in ipairs(call('ZRANGEBYSCORE', K.expiries, '-inf', now, 'LIMIT', 0, request.limit)) do
    local e = entry.read(field)
    if e and not e.claim then
      history.finish(e, 'expired')
      tell(expired, e)
    else
      later('ZREM', K.expiries, field)
    end
  end
  flush()
end

function reap.sticky_of(home, freed, late)
  local overdue = now - request.sticky
  local fields = call('ZRANGEBYSCORE', K['sticky:'] .. home, '-inf', overdue, 'LIMIT', 0, request.limit)
  for _, field in ipairs(fields) do
    local e = entry.read(field)
    if not e then
      later('ZREM', K['sticky:'] .. home, field)
    elseif home == request.node then
      tell(late, e)
    else
      local new = entry.copy(e)
      new.node = ''
      entry.change(field, new)
      tell(freed, e)
    end
  end
end

function reap.sticky(freed, late)
  for _, home in ipairs(call('SMEMBERS', K.homes)) do
    local heard = tonumber(call('HGET', K.nodes, home))
    if home == request.node or not heard or now - heard >= request.sticky then reap.sticky_of(home, freed, late) end
    if call('EXISTS', K['sticky:'] .. home) == 0 then later('SREM', K.homes, home) end
  end
  flush()
end

-- Nodes that were silent for long are forgotten.
function reap.nodes()
  local heard = call('HGETALL', K.nodes)
  for i = 1, #heard, 2 do
    if now - tonumber(heard[i + 1]) >= request.silent then call('HDEL', K.nodes, heard[i]) end
  end
end

function reap.periods()
  local scopes = call('ZRANGEBYSCORE', K.periods, '-inf', now, 'LIMIT', 0, request.limit)
  batch.run('HDEL', K.holds, scopes)
  batch.run('ZREM', K.periods, scopes)
end

-- One round; the limit holds for each kind: ids and queues of the reaped, dead, expired, freed and late.
local function reap_all(keys, arguments)
  begin(keys, arguments)
  local before = reply.before()
  if before then return before end
  local reaped, dead, expired, freed, late = {}, {}, {}, {}, {}
  reap.leases(reaped, dead)
  reap.expired(expired)
  reap.sticky(freed, late)
  reap.periods()
  reap.nodes()
  settle.sweep_receipts(request.limit)
  outcome.sweep(request.limit)
  ring()
  return reply.remember({ now, { reaped, dead, expired, freed, late } })
end

-- --- pruning -------------------------------------------------------------------------------------------------

local prune = {}

-- The number of the body that an entry has now, packed, live or ended; nil if nothing is known of it.
function prune.current_body(field, state)
  local kind = state and sub(state, 1, 1)
  if not state then return call('HEXISTS', K.entries, field) == 1 and field or nil end
  if kind == 'W' or kind == 'P' then return item.body_field(sub(state, 2)) end
  local record
  if kind == 'C' then
    record = claims.read(sub(state, 2))
    local text = record and claims.item(record, field)
    return text and item.body_field(text)
  end
  record = history.read(sub(state, 2))
  local text = record and history.item_of(record, field)
  if not text then
    local letter = call('HGET', K.dead, field)
    text = letter and sub(letter, 9)
  end
  return text and item.body_field(text)
end

-- Removes a row, and its body when nothing else refers to it.
function prune.row(key, text, content)
  local field, number = sub(text, 10, 15), item.body_field(text)
  local state = call('HGET', K.states, field)
  local e = content and body.parse(content)
  if e then
    later('ZREM', K['trail:'] .. e.id, key)
    if e.labels then history.write_labels(e.labels, K['row_label:'], key, false) end
  end
  if state == 'H' .. key or state == 'G' .. key then
    later('HDEL', K.entries, number)
    later('HDEL', K.states, field)
    if e and call('HGET', K.ids, e.id) == field then
      later('HDEL', K.ids, e.id)
      link.forget(e.id)
    end
  elseif state ~= 'D' .. key and prune.current_body(field, state) ~= number then
    if not (e and history.names(e.id, number, '(' .. key)) then later('HDEL', K.entries, number) end
  end
end

function prune.record(key, record)
  local numbers = {}
  for index = 0, record.count - 1 do numbers[index + 1] = item.body_field(history.item(record, index)) end
  local contents = batch.get(K.entries, numbers)
  for index = 0, record.count - 1 do prune.row(key, history.item(record, index), contents[index + 1]) end
  later('HDEL', K.history, key)
  later('ZREM', K['history:'] .. record.queue, key)
  batch.send() -- the next row of the same entry has to see it
end

-- Removes the oldest records that are older than asked for. One that begins within the limit goes whole.
local function prune_all(keys, arguments)
  begin(keys, arguments)
  local pruned = tonumber(call('HGET', K.counters, 'pruned')) or 0
  local last = tonumber(call('HGET', K.counters, 'history')) or 0
  local before, gone = now - request.older, 0
  local fields = {}
  for seq = pruned + 1, min(last, pruned + request.limit) do fields[#fields + 1] = packed(seq) end
  local texts = batch.get(K.history, fields)
  local i = 1
  while i <= #fields do
    local record = texts[i] and history.parse(texts[i])
    if record and record.ended >= before then break end
    if record then
      prune.record(fields[i], record)
      gone = gone + record.count
    end
    i = i + (record and record.count or 1)
  end
  call('HSET', K.counters, 'pruned', format('%.0f', pruned + i - 1))
  settle.sweep_receipts(1000)
  return { now, gone }
end
