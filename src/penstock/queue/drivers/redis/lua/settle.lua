-- Settle: steps, each of endings, puts and events that happen together or not at all; documents; then the claim.
--
-- An ending is a list: id, sequence number (packed when it was looked at) or nil, token, outcome, start, due, delay,
-- error, result (codec, for how long, which argument, queue, batch) or nil.

local settle = {}

function settle.give_back(e, ending)
  local outcome, started, due, delay, err = unpack(ending, 4, 8)
  local new = entry.given_back(e)
  if err then new.error = err end
  if outcome == 'retry' then
    history.passing(e, 'retried', err, started, true)
    new.due, new.suspect, new.recorded = due or now + delay, false, true
  else
    -- Nothing in the history tells of these two, so a receipt does.
    set(work.receipts, settle.receipt_key(ending), pack({ outcome }))
    new.attempt = e.attempt - 1
    if outcome == 'snooze' then new.due, new.suspect = due or now + delay, false end
    -- Released is as if never claimed; so a suspect stays one, nothing has cleared it.
  end
  entry.change(packed(e.seq), new)
end

-- The sequence number of what is ended; a lease that was looked up elsewhere is found by its id.
function settle.field(ending)
  local field = ending[2]
  if type(field) == 'number' then field = packed(field) end
  field = field or entry.field(ending[1])
  ending[2] = field
  return field
end

function settle.receipt_key(ending) return ending[3] .. ' ' .. ending[2] end

function settle.apply_ending(ending)
  local field = settle.field(ending)
  local e = field and entry.held(field, ending[3])
  if not e then fail('lost', ending[1]) end
  local state = ending[4]
  if state == 'done' or state == 'dead' then
    history.finish(e, state, ending[8], ending[5], true)
    if ending[9] and state == 'done' then
      local codec, lasting, at, name, group = unpack(ending[9], 1, 5)
      outcome.keep({ e.id, e.generation, codec, lasting, at, name, group })
    end
  else
    settle.give_back(e, ending)
  end
end

-- --- steps -------------------------------------------------------------------------------------------

-- A step: whether it is a repeat, endings, puts, events, where its payloads begin among the arguments, and links (source,
-- target, kind).
function settle.apply(step)
  local repeated, endings, news, events, first, links = unpack(step, 1, 6)
  local puts, published = {}, {}
  for i = 1, #endings do settle.apply_ending(endings[i]) end
  local sources, targets, known = {}, {}, {}
  for i = 1, links and #links or 0 do sources[links[i][1]], targets[links[i][2]] = true, true end
  for i = 1, #news do
    local new = new_entry(news[i])
    new.linked, new.held = sources[new.id], targets[new.id]
    if links then known[new.id] = settle.is_there(new, repeated) end
    puts[i] = put.entry(new, ARGS[first + i - 1], repeated)
  end
  if links then link.make(links, news, puts, known) end
  first = first + #news
  for i = 1, #events do published[i] = put.publish(events[i], ARGS[first + i - 1], repeated) end
  return { 1, puts, published }
end

-- Whether a put finds its own entry.
function settle.is_there(new, repeated)
  local field = entry.field(new.id)
  return field and (entry.read(field) or (repeated or new.repeated) and history.known(field)) and true
end

-- Whether a row of the history is the end of this very lease.
function settle.is_row_of(record, field, token, state)
  if not record or not record.settled or record.state ~= state then return false end
  local text = history.item_of(record, field)
  return text and (sunpack('>I4', text, 30)) .. '-' .. record.claim == token
end

-- Whether this very ending happened before: said by a receipt or by its row.
function settle.was_settled(ending)
  local id, field, token, outcome = unpack(ending, 1, 4)
  if outcome == 'snooze' or outcome == 'release' then
    local text = work.receipts[settle.receipt_key(ending)] or call('HGET', K.receipts, settle.receipt_key(ending))
    return text and decode(text)[1] == outcome
  end
  if outcome ~= 'retry' then
    local record = history.last(field)
    return settle.is_row_of(record, field, token, outcome)
  end
  for i = #work.rows, 1, -1 do
    local row = work.rows[i]
    if row.trail == id and settle.is_row_of(history.parse(row.text), field, token, 'retried') then return true end
  end
  for _, key in ipairs(call('ZREVRANGE', K['trail:'] .. id, 0, -1)) do
    if settle.is_row_of(history.read(key), field, token, 'retried') then return true end
  end
  return false
end

-- An entry that was put before, living or ended.
function settle.known(id)
  local field = entry.field(id)
  return field and history.known(field)
end

-- What the puts of an event gave that happened before; who subscribed since got nothing of it.
function settle.recall_event(event)
  local puts, template = {}, event[2]
  for _, subscription in ipairs(put.wanting(event)) do
    local id = put.derived_id(template[1], subscription.name)
    local known = settle.known(id)
    if known then puts[#puts + 1] = { id, subscription.queue, known.first_due } end
  end
  return puts
end

-- What the puts and events of a step gave when it happened before, and whether an id that was made for this very step is
-- known, which proves that it did; and whether a plain put is missing, which proves that it did not.
function settle.recall(news, events)
  local puts, published, own, missing = {}, {}, false, false
  for i = 1, #news do
    local new = new_entry(news[i])
    local known = settle.known(new.id)
    own = own or (known and not new.repeated)
    missing = missing or not (known or new.unique)
    puts[i] = known and known.first_due or { new.id, now }
  end
  for i, event in ipairs(events) do
    published[i] = settle.recall_event(event)
    own = own or (#published[i] > 0 and not new_entry(event[2]).repeated)
  end
  return puts, published, own, missing
end

-- What a step gave when it happened already: none of its leases is held, and what it left behind is there.
function settle.done_before(step)
  local endings, settled = step[2], false
  for i = 1, #endings do
    local field = settle.field(endings[i])
    if field and entry.held(field, endings[i][3]) then return nil end
    settled = settled or field and settle.was_settled(endings[i])
  end
  local puts, published, own, missing = settle.recall(step[3], step[4])
  -- The same lease may have come with another step: a unit whose commit was in doubt is rolled back.
  if not own and (missing or not settled) then return nil end
  local key = #endings > 0 and endings[1][2] and settle.receipt_key(endings[1])
  local text = key and (work.receipts[key] or call('HGET', K.receipts, key))
  local receipt = text and decode(text)
  if receipt and receipt[2] then
    local same = #receipt[2][2] == #step[3] and #receipt[2][3] == #step[4]
    return same and receipt[2] or nil
  end
  return { 1, puts, published }
end

-- The result of a step: of plain puts their due time; else a list that begins with 1; or 0 and the problem.
function settle.take(step)
  if step[1] == 'put' then return put.plain(step) end
  local endings = step[2]
  local before = step[1] and settle.done_before(step)
  if before then return before end
  local result, problem = try(settle.apply, step)
  if not result then return { 0, unpack(problem) } end
  if #endings > 0 and #step[3] + #step[4] > 0 then
    -- A repeat is answered with what the step gave, whatever has become of its puts since.
    work.receipts[settle.receipt_key(endings[1])] = pack({ endings[1][4], result })
  end
  return result
end

-- --- successes by the hundred ---------------------------------------------------------------------------

-- Ends entries of a claim of a kind as done: its key, packed sequence numbers, packed starts. True, or nil if they have
-- to be looked at one by one.
function settle.finish_together(key, seqs, starts)
  local record = claims.read(key)
  if not record or not record.kind then return nil end
  local q = queue.read(record.queue)
  if q.fifo or q.limit then return nil end
  local items = record.items
  if seqs == record.seqs then
    record.seqs, record.items = '', ''
    settle.save(record)
  else
    items = settle.take_out(record, seqs)
    if not items then return nil end
  end
  settle.record_done(record, seqs, items, starts)
  queue.look(record.queue)
  return true
end

-- Takes some entries out of a claim and gives their items; nil, and nothing changed, if it does not hold them all.
function settle.take_out(record, seqs)
  local items, gone, size = {}, {}, item.size
  for at = 1, #seqs, 6 do
    local index = claims.index(record, sub(seqs, at, at + 5))
    if not index or gone[index] then return nil end
    gone[index] = true
    items[#items + 1] = sub(record.items, size * index + 1, size * index + size)
  end
  local left_seqs, left_items = {}, {}
  for index = 0, #record.seqs / 6 - 1 do
    if not gone[index] then
      left_seqs[#left_seqs + 1] = sub(record.seqs, 6 * index + 1, 6 * index + 6)
      left_items[#left_items + 1] = sub(record.items, size * index + 1, size * index + size)
    end
  end
  record.seqs, record.items = concat(left_seqs), concat(left_items)
  settle.save(record)
  return concat(items)
end

function settle.save(record)
  if record.seqs == '' then
    work.claims[record.key] = false
    call('HDEL', K.claims, record.key)
    call('ZREM', K['until'], record.key)
  else
    call('HSET', K.claims, record.key, claims.text(record))
  end
end

-- One record of the history for all of them, or a few where they are very many.
function settle.record_done(record, seqs, items, starts)
  local head = { 'done', now, record.claim, record.owner, record.queue, false, record.node, true }
  for first = 0, #seqs / 6 - 1, history.most do
    local last = min(first + history.most, #seqs / 6)
    local its_seqs, its_items = sub(seqs, 6 * first + 1, 6 * last), sub(items, item.size * first + 1, item.size * last)
    local row = settle.record_rows(head, its_seqs, its_items, sub(starts, 8 * first + 1, 8 * last))
    if record.kind == 'marked' then settle.end_marked(row, its_seqs, its_items) end
  end
end

-- The labels and links of entries that ended together with one record of the history.
function settle.end_marked(row, seqs, items)
  local numbers, ids, labelled = {}, {}, {}
  for i = 1, #seqs / 6 do numbers[i] = item.body_field(sub(items, item.size * (i - 1) + 1, item.size * i)) end
  for i, text in ipairs(batch.get(K.entries, numbers)) do
    local id, labels, linked = body.marks(text)
    if linked then ids[#ids + 1] = id end
    for name, value in pairs(labels or NOTHING) do
      local label = name .. '=' .. value
      local fields = labelled[label]
      if not fields then
        fields = {}
        labelled[label] = fields
      end
      fields[#fields + 1] = sub(seqs, 6 * i - 5, 6 * i)
    end
  end
  for label, fields in pairs(labelled) do
    batch.run('ZREM', K['label:'] .. label, fields)
    call('ZADD', K['row_label:'] .. label, 0, row)
  end
  link.all_done(ids)
end

-- The key of the record.
function settle.record_rows(head, seqs, items, starts)
  local count, name = #seqs / 6, head[5]
  local last = work.counters.history
  if last then
    last = last + count
    work.counters.history = last
  else
    last = call('HINCRBY', K.counters, 'history', count)
  end
  local row = packed(last - count + 1)
  call('HSET', K.history, row, history.text(head, items, starts))
  call('ZADD', K['history:'] .. name, 0, row)
  local states, fields, state = {}, {}, 'H' .. row
  for i = 1, count do
    local field = sub(seqs, 6 * i - 5, 6 * i)
    states[2 * i - 1], states[2 * i], fields[i] = field, state, field
  end
  batch.run('HSET', K.states, states)
  batch.run('ZREM', K['live:'] .. name, fields)
  return row
end

-- Endings that are all plain successes of one claim: where its key, sequence numbers, starts and fences, all packed,
-- are among the arguments, the claim's id, and what handlers returned, or nil. 1, or a list of what became of each.
function settle.finish(group)
  local first, claim_id, kept = group[1], group[2], group[3]
  local key, seqs, starts, fences = unpack(ARGS, first, first + 3)
  if work.claims_left[key] then flush() end
  if settle.finish_together(key, seqs, starts) then
    for _, alike in ipairs(kept or NOTHING) do outcome.keep_alike(alike) end
    return 1
  end
  local results = {}
  for i = 1, #seqs / 6 do
    local field = sub(seqs, 6 * i - 5, 6 * i)
    local started = sunpack('>i8', starts, 8 * i - 7)
    local token = (sunpack('>I4', fences, 4 * i - 3)) .. '-' .. claim_id
    local e = entry.held(field, token)
    if e then history.finish(e, 'done', nil, started ~= 0 and started, true) end
    results[i] = e and 1 or 0
  end
  for _, alike in ipairs(kept or NOTHING) do outcome.keep_alike(alike, results) end
  return results
end

-- --- documents -----------------------------------------------------------------------------------------

-- A document is two numbers, its version and when it was written, and its value.
function settle.stored_document(name)
  local text = call('HGET', K.documents, name)
  if not text then return 0 end
  local version = sunpack('<d', text)
  return version, sub(text, 17)
end

-- Name, the version it asks for or false, and which argument is its value or 0: remove it.
function settle.write_document(document)
  local name, wanted, at = document[1], document[2], document[3]
  local value = at > 0 and ARGS[at]
  local version, stored = settle.stored_document(name)
  if wanted and wanted ~= version then
    if not value then return not stored and 1 or 0 end
    -- Its own value, one version on, is what this very write has left before.
    return version == wanted + 1 and stored == value and 1 or 0
  end
  if value then
    call('HSET', K.documents, name, spack('<dd', version + 1, now) .. value)
    call('ZADD', K.documented, format('%.0f', now), name)
  else
    call('HDEL', K.documents, name)
    call('ZREM', K.documented, name)
  end
  return 1
end

-- --- the call -----------------------------------------------------------------------------------------

-- Receipts are known for fifteen minutes.
function settle.sweep_receipts(most)
  local old = call('ZRANGEBYSCORE', K.receipted, '-inf', now - 1000000 * reply.seconds, 'LIMIT', 0, most)
  if #old > 0 then
    batch.run('HDEL', K.receipts, old)
    batch.run('ZREM', K.receipted, old)
  end
end

-- Calls one after the other: of each the plain successes by claim, the steps, the documents, then the claim.
local function settle_all(keys, arguments)
  begin(keys, arguments)
  local replies = {}
  for i, todo in ipairs(request.calls) do
    local groups, steps, wish, documents = todo[1], todo[2], todo[3], todo[4]
    local finished, results, written = {}, {}, {}
    for n = 1, #groups do finished[n] = settle.finish(groups[n]) end
    for n = 1, #steps do results[n] = settle.take(steps[n]) end
    if next(work.receipts) then settle.sweep_receipts(10) end
    if wish then flush() end
    for n = 1, #documents do written[n] = settle.write_document(documents[n]) end
    replies[i] = { finished, results, wish and claiming.take_claim(wish) or false, written }
  end
  flush()
  ring()
  return { now, replies }
end

-- --- ending entries by hand -----------------------------------------------------------------------------

function entry.covered(name)
  local scope = request.scope
  if not scope then return true end
  if scope.family then return sub(name, 1, #scope.name) == scope.name end
  return name == scope.name
end

function entry.changeable(id, force)
  local e = entry.by_id(id)
  if not e or not entry.covered(e.queue) then fail('missing', id) end
  if e.claim and not force then fail('leased', id, e.queue, e.claim.owner) end
  return e
end

function settle.was_cancelled(id)
  local field = entry.field(id)
  if not field or entry.read(field) then return false end
  local record = history.last(field)
  return record and record.state == 'cancelled'
end

local change = {}

function change.cancel()
  local ended = {}
  for _, id in ipairs(request.ids) do
    if not settle.was_cancelled(id) then
      local e = entry.changeable(id, request.force)
      history.finish(e, 'cancelled')
      ended[#ended + 1] = id
      ended[#ended + 1] = e.queue
    end
  end
  return ended
end

function change.update() return put.update(request.ids[1], request.changes, ARGS[3], request.force) end

function change.replay()
  local replayed = {}
  for _, id in ipairs(request.ids) do
    if not entry.by_id(id) then
      local name = put.replay(id)
      replayed[#replayed + 1] = id
      replayed[#replayed + 1] = name
    end
  end
  return replayed
end

-- All of a call or none of it.
local function change_all(keys, arguments)
  begin(keys, arguments)
  local before = reply.before()
  if before then return before end
  if put.full and request.call ~= 'cancel' then return { now, { 0, 'full' } } end
  local result, problem = try(change[request.call])
  if problem then return { now, { 0, unpack(problem) } } end
  put.write_revived()
  flush()
  ring()
  return reply.remember({ now, result })
end
