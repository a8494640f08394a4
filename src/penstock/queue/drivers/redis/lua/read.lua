-- Read: searches over live entries, dead letters and rows, in pages: at most so many are looked at in one call; counts.

-- So many are looked at in a call, and read at a time; what a page of letters ends with where some have no number yet.
local search = { page = 2000, chunk = 100, unnumbered = -2 }
local where

-- --- where candidates come from: sorted sets of packed numbers --------------------------------------------

function search.label_indexes(prefix)
  local indexes = {}
  for label, value in pairs(where.labels or {}) do indexes[#indexes + 1] = prefix .. label .. '=' .. value end
  return indexes
end

function search.smallest(indexes)
  local best, size
  for _, key in ipairs(indexes) do
    local count = call('ZCARD', key)
    if not size or count < size then best, size = key, count end
  end
  return best
end

function search.queue_indexes(prefix)
  if where.queue then return { prefix .. where.queue } end
  local indexes, family = {}, where.family or ''
  for _, name in ipairs(call('HKEYS', K.queues)) do
    if sub(name, 1, #family) == family then indexes[#indexes + 1] = prefix .. name end
  end
  return indexes
end

-- A cursor may be larger than any number there is.
function search.field(cursor) return packed(max(0, min(cursor, 281474976710655))) end

function search.in_order(numbers)
  table.sort(numbers, function(a, b)
    if where.newest then return a > b end
    return a < b
  end)
  return numbers
end

-- Without conditions every candidate is a hit, and there is no need to look at more than are asked for.
function search.wanted()
  local conditions = where.states or where.from or where.before or where.labels
  return conditions and search.page or min(search.page, request.limit)
end

-- The next numbers beyond the cursor, over all the indexes together, and whether there may be more. Of many indexes
-- only a little is read at a time: then what comes after the end of a part is left for the next time.
function search.candidates(indexes, cursor)
  local command, from, to = 'ZRANGEBYLEX', '-', '+'
  if where.newest then command, from, to = 'ZREVRANGEBYLEX', '+', '-' end
  if cursor then from = '(' .. search.field(cursor) end
  local share = max(20, floor(search.wanted() / max(1, #indexes)))
  local numbers, bound = {}, nil
  for _, key in ipairs(indexes) do
    local page = call(command, key, from, to, 'LIMIT', 0, share)
    for n = 1, #page do numbers[#numbers + 1] = number_of(page[n]) end
    if #page == share then
      local last = number_of(page[#page])
      if not bound or (where.newest and last > bound) or (not where.newest and last < bound) then bound = last end
    end
  end
  if #indexes > 1 then
    search.in_order(numbers)
    while bound and #numbers > 0 and ((where.newest and numbers[#numbers] < bound) or
      (not where.newest and numbers[#numbers] > bound)) do
      numbers[#numbers] = nil
    end
  end
  return numbers, bound ~= nil
end

function search.beyond(number)
  if not where.after then return true end
  if where.newest then return number < where.after end
  return number > where.after
end

-- Numbers of the ids asked for, in order.
function search.by_ids()
  local numbers = {}
  for _, field in ipairs(batch.get(K.ids, where.ids)) do
    local number = field and number_of(field)
    if number and search.beyond(number) then numbers[#numbers + 1] = number end
  end
  return search.in_order(numbers), false
end

-- --- conditions ----------------------------------------------------------------------------------------

function search.has_state(state)
  if not where.states then return true end
  for _, wanted in ipairs(where.states) do
    if wanted == state or (wanted == 'waiting' and state == 'held') then return true end
  end
  return false
end

function search.live_state(record, text)
  if record then return 'leased' end
  return ready.due_of(text) == HELD and 'held' or 'waiting'
end

function search.fits(content, state, at)
  if not search.has_state(state) then return false end
  if where.from and at < where.from then return false end
  if where.before and at >= where.before then return false end
  if not (where.queue or where.family or where.labels) then return true end
  local e = body.parse(content)
  if where.queue and e.queue ~= where.queue then return false end
  if where.family and sub(e.queue, 1, #where.family) ~= where.family then return false end
  for label, value in pairs(where.labels or {}) do
    if not e.labels or e.labels[label] ~= value then return false end
  end
  return true
end

-- --- live entries ----------------------------------------------------------------------------------------

local kinds = { live = {}, dead = {}, history = {} }

-- Looks at candidates a few at a time, for bodies may be large: those that `hit` makes something of, at most so many.
function search.collect(candidates, most, read, hit)
  local hits = {}
  for start = 1, #candidates, search.chunk do
    local fields = { unpack(candidates, start, min(start + search.chunk - 1, #candidates)) }
    local values = read(fields)
    for i, field in ipairs(fields) do
      if #hits == most then return hits end
      hits[#hits + 1] = hit(field, values, i)
    end
  end
  return hits
end

-- Where an entry is: its item or nil for a fresh one, its node and its claim; false if it does not live.
function kinds.live.place(field, state)
  if not state then return nil, '' end
  local kind = sub(state, 1, 1)
  if kind == 'W' or kind == 'P' then return sub(state, 2, 35), sub(state, 36) end
  local record = kind == 'C' and claims.read(sub(state, 2))
  local text = record and claims.item(record, field)
  if not text then return false end
  record['until'] = record['until'] or tonumber(call('ZSCORE', K['until'], record.key)) or 0
  return text, record.node, record
end

function kinds.live.read(fields)
  return { states = batch.get(K.states, fields), bodies = batch.get(K.entries, fields) }
end

-- Item, body, node, error, and of a leased one the key of its claim, claim id, owner, claimed, until.
function kinds.live.hit(field, values, i)
  local text, node, record = kinds.live.place(field, values.states[i])
  if text == false then return nil end
  local number = text and item.body_field(text) or field
  local content = values.bodies[i]
  if number ~= field then content = call('HGET', K.entries, number) end
  if not content then return nil end
  text = text or item.fresh(content, field)
  if not search.fits(content, search.live_state(record, text), ready.due_of(text)) then return nil end
  local hit = { text, content, node, sunpack('>I4', text, 30) > 0 and call('HGET', K.errors, field) or false }
  if record then
    hit[5], hit[6], hit[7], hit[8], hit[9] = record.key, record.claim, record.owner, record.claimed, record['until']
  end
  return hit
end

function kinds.live.page(cursor, most)
  local numbers, more
  if where.ids then
    numbers, more = search.by_ids(), false
  else
    local labelled = search.smallest(search.label_indexes(K['label:']))
    numbers, more = search.candidates(labelled and { labelled } or search.queue_indexes(K['live:']), cursor)
  end
  local fields = {}
  for i = 1, #numbers do fields[i] = packed(numbers[i]) end
  return search.collect(fields, most, kinds.live.read, kinds.live.hit), more and numbers[#numbers]
end

-- --- dead letters ------------------------------------------------------------------------------------------

function kinds.dead.read(fields)
  return { letters = batch.get(K.dead, fields), numbers = call('ZMSCORE', K.dead_all, unpack(fields)) }
end

-- Item, body, node, error, ended, number.
function kinds.dead.hit(_, values, i)
  local letter, number = values.letters[i], tonumber(values.numbers[i] or nil)
  if not letter or not number then return nil end
  local ended, text, node, err = history.read_letter(letter)
  local content = call('HGET', K.entries, item.body_field(text))
  if content and search.fits(content, 'dead', ended) then return { text, content, node, err, ended, number } end
end

-- The next letters of a set beyond the cursor, and the number of the last one if there may be more.
function search.letters(key, cursor)
  local command, from, to = 'ZRANGEBYSCORE', '-inf', '+inf'
  if where.newest then command, from, to = 'ZREVRANGEBYSCORE', '+inf', '-inf' end
  if cursor then from = format('(%.0f', cursor) end
  local most = search.wanted()
  local fields = call(command, key, from, to, 'LIMIT', 0, most)
  return fields, #fields == most and tonumber(call('ZSCORE', key, fields[#fields]))
end

-- Letters of the ids asked for, in order.
function search.letters_of_ids()
  local numbers, field_of = {}, {}
  for _, field in ipairs(batch.get(K.ids, where.ids)) do
    local number = field and tonumber(call('ZSCORE', K.dead_all, field) or nil)
    if number and search.beyond(number) then
      numbers[#numbers + 1] = number
      field_of[number] = field
    end
  end
  local fields = {}
  for i, number in ipairs(search.in_order(numbers)) do fields[i] = field_of[number] end
  return fields, false
end

function kinds.dead.page(cursor, most)
  local fields, more
  -- A worker of an earlier release that still runs buries without numbers: there is no order to page in.
  if call('ZCOUNT', K.dead_all, '-inf', 0) > 0 then return {}, search.unnumbered end
  if where.ids then
    fields, more = search.letters_of_ids()
  else
    local labelled = search.smallest(search.label_indexes(K['dead_label:']))
    fields, more = search.letters(labelled or (where.queue and K['dead:'] .. where.queue) or K.dead_all, cursor)
  end
  return search.collect(fields, most, kinds.dead.read, kinds.dead.hit), more
end

-- --- history -----------------------------------------------------------------------------------------------

-- Rows of a record that are beyond the cursor, within bounds, and fit: number, item, body, start, state, owner, error,
-- node, ended.
function search.rows(number, record, bounds, hits, most)
  local numbers = {}
  for index = 0, record.count - 1 do numbers[index + 1] = item.body_field(history.item(record, index)) end
  local contents = batch.get(K.entries, numbers)
  local first, last, step = 0, record.count - 1, 1
  if where.newest then first, last, step = last, first, -1 end
  for index = first, last, step do
    local at, content = number + index, contents[index + 1]
    if #hits < most and content and at >= bounds[1] and at <= bounds[2] and search.beyond(at)
      and (not where.wanted or where.wanted[body.parse(content).id])
      and search.fits(content, record.state, record.ended) then
      local started = sunpack('>i8', record.starts, 8 * index + 1)
      hits[#hits + 1] = {
        at, history.item(record, index), content, started, record.state, record.owner, record.error, record.node,
        record.ended,
      }
    end
  end
end

-- Hits among the records that begin with these numbers, and the last row of the last of them.
function search.records(numbers, bounds, most)
  local hits, last = {}, nil
  for start = 1, #numbers, search.chunk do
    local fields = {}
    for i = start, min(start + search.chunk - 1, #numbers) do fields[#fields + 1] = packed(numbers[i]) end
    for i, text in ipairs(batch.get(K.history, fields)) do
      if text and #hits < most then
        local number = numbers[start + i - 1]
        local record = history.parse(text)
        search.rows(number, record, bounds, hits, most)
        last = number + record.count - 1
      end
    end
    if #hits == most then break end
  end
  return hits, last
end

-- All records in order: their numbers have no gaps but those of their rows, and at the old end. The first of a page may
-- begin before it.
function search.numbered(cursor, most)
  local last = tonumber(call('HGET', K.counters, 'history')) or 0
  local oldest = (tonumber(call('HGET', K.counters, 'pruned')) or 0) + 1
  local span = min(search.page, max(search.chunk, most))
  local from, to
  if where.newest then
    to = cursor and min(cursor - 1, last) or last
    from = max(oldest, to - span + 1)
  else
    from = max(oldest, (cursor or 0) + 1)
    to = min(last, from + span - 1)
  end
  local fields, numbers = {}, {}
  local begin_at = max(oldest, from - history.most + 1)
  for number = begin_at, to do fields[#fields + 1] = packed(number) end
  for i, text in ipairs(batch.get(K.history, fields)) do
    if text then numbers[#numbers + 1] = begin_at + i - 1 end
  end
  local hits = search.records(search.in_order(numbers), { from, to }, most)
  if where.newest then return hits, from > oldest and from end
  return hits, to < last and to
end

function search.records_of_ids()
  local numbers, seen = {}, {}
  local fields = batch.get(K.ids, where.ids)
  for i, id in ipairs(where.ids) do
    local keys = call('ZRANGE', K['trail:'] .. id, 0, -1)
    local earlier = fields[i] and put.earlier_row(fields[i])
    if earlier then keys[#keys + 1] = earlier end
    for _, key in ipairs(keys) do
      if not seen[key] then
        seen[key] = true
        numbers[#numbers + 1] = number_of(key)
      end
    end
  end
  return search.in_order(numbers)
end

-- The number before that of the record which the cursor is in, and of which some rows may still be beyond it.
function search.before_record(index, cursor)
  local begins = call('ZREVRANGEBYLEX', index, '[' .. search.field(cursor), '-', 'LIMIT', 0, 1)[1]
  return begins and number_of(begins) - 1 or cursor
end

function kinds.history.page(cursor, most)
  local everything = { 0, math.huge }
  if where.ids then
    where.wanted = {}
    for _, id in ipairs(where.ids) do where.wanted[id] = true end
    return search.records(search.records_of_ids(), everything, most), nil
  end
  local index = search.smallest(search.label_indexes(K['row_label:'])) or (where.queue and K['history:'] .. where.queue)
  if not index then return search.numbered(cursor, most) end
  if where.newest then
    local numbers, more = search.candidates({ index }, cursor)
    return search.records(numbers, { 0, cursor and cursor - 1 or math.huge }, most), more and numbers[#numbers]
  end
  local numbers, more = search.candidates({ index }, cursor and search.before_record(index, cursor))
  local hits, last = search.records(numbers, { (cursor or 0) + 1, math.huge }, most)
  return hits, more and last
end

-- --- the search ---------------------------------------------------------------------------------------------

-- One page: the hits, and the number from which to continue, -1 at the end, or -2 where letters have to be numbered.
function search.run()
  where = request.where
  local hits, on = kinds[request.kind].page(where.cursor or where.after or nil, request.limit)
  return hits, on or -1
end

local function find(keys, arguments)
  begin(keys, arguments)
  local hits, on = search.run()
  return { now, hits, on }
end

-- Removes the payloads that the rows of an entry's attempts show; its last row is one of them.
function search.strip(id, last)
  local keys = call('ZRANGE', K['trail:'] .. id, 0, -1)
  keys[#keys + 1] = last
  for _, key in ipairs(keys) do
    local record = history.read(key)
    for index = 0, record and record.count - 1 or -1 do
      local number = item.body_field(history.item(record, index))
      local content = body.read(number)
      local e = content and body.parse(content)
      if e and e.id == id and not e.stripped then
        e.stripped = true
        set(work.bodies, number, body.text(e, ''))
      end
    end
  end
end

-- Dead letters that fit go for good; what the history shows of them stays, without the payloads.
function search.purge(text, node)
  local field, number = sub(text, 10, 15), item.body_field(text)
  local e = entry.build(text, node)
  local state = call('HGET', K.states, field) or ''
  local key = sub(state, 2)
  set(work.exhumed, #work.exhumed + 1, e)
  search.strip(e.id, key)
  -- Nobody can replay it any more: to what waits for it that is the same as cancelled.
  if e.linked then link.ended(e.id, 'purged') end
  if sub(state, 1, 1) == 'D' and call('HEXISTS', K.history, key) == 1 then
    later('HSET', K.states, field, 'G' .. key)
  else
    work.bodies[number] = false
    later('HDEL', K.states, field)
    if call('HGET', K.ids, e.id) == field then
      later('HDEL', K.ids, e.id)
      link.forget(e.id)
    end
  end
  return { e.id, e.queue }
end

local function purge(keys, arguments)
  begin(keys, arguments)
  local before = reply.before()
  if before then return before end
  local hits, on = search.run()
  local gone = {}
  for i, hit in ipairs(hits) do gone[i] = search.purge(hit[1], hit[3]) end
  flush()
  ring()
  return reply.remember({ now, gone, on })
end

-- --- counts --------------------------------------------------------------------------------------------------

local count = {}

function count.locks_of(name)
  local flat, locks = call('HGETALL', K['locks:'] .. name), {}
  for i = 1, #flat, 2 do
    local since, reason = unpack(decode(flat[i + 1]))
    locks[#locks + 1] = { name, flat[i], reason, since }
  end
  return locks
end

function count.names()
  if request.queue then return { request.queue } end
  local names, prefix = {}, request.family or ''
  for _, name in ipairs(call('HKEYS', K.queues)) do
    if sub(name, 1, #prefix) == prefix then names[#names + 1] = name end
  end
  return names
end

-- How many of a set are due, how many wait, and when the oldest that is due became so.
function count.set(key, total)
  total.ready = total.ready + ready.due_count(key)
  total.waiting = total.waiting + call('ZCARD', key)
  local oldest = ready.first_due(key)
  if oldest and oldest <= now then total.oldest = min(total.oldest or oldest, oldest) end
end

function count.fifo(name, total)
  local key = K['dues:'] .. name
  total.ready, total.waiting = call('ZCOUNT', key, '-inf', now), call('ZCARD', key)
  local oldest = tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
  if oldest and oldest <= now then total.oldest = oldest end
end

function count.lanes(name, q)
  local total = { ready = 0, waiting = 0 }
  if q.fifo then
    count.fifo(name, total)
    return total
  end
  for node, lane in pairs(q.lanes) do
    count.set(ready.key(name, node), total)
    if lane.suspects then count.set(ready.suspect_key(name, node), total) end
  end
  for _, group in ipairs(q.limit and call('SMEMBERS', K['groups:'] .. name) or {}) do
    count.set(K['parked:'] .. name .. ':' .. group, total)
  end
  return total
end

function count.queue(name)
  local q = queue.read(name)
  local live = call('ZCARD', K['live:'] .. name)
  local retrying = call('ZCOUNT', K['retrying:'] .. name, format('(%.0f', now), '+inf')
  local total, held = count.lanes(name, q), call('ZCARD', K['held:'] .. name)
  return {
    name, total.ready, total.waiting - total.ready - retrying - held, retrying, live - total.waiting,
    call('ZCARD', K['dead:'] .. name), total.oldest or false, q.fifo and 1 or 0, count.locks_of(name), held,
  }
end

-- Whether counters, fields and values in turn, are those counted.
function count.same(flat, counted)
  local values = 0
  for i = 1, #flat, 2 do
    if counted[flat[i]] ~= tonumber(flat[i + 1]) then return false end
    values = values + 1
  end
  for _ in pairs(counted) do values = values - 1 end
  return values == 0
end

local reads = {}

function reads.counts()
  local counts = {}
  for i, name in ipairs(count.names()) do counts[i] = count.queue(name) end
  return counts
end

-- Names in their order, a page of them.
function reads.page()
  local prefix, after = request.prefix, request.after
  local from = after >= prefix and '(' .. after or '[' .. prefix
  if from == '[' or from == '(' then from = '-' end
  local to = prefix ~= '' and '[' .. prefix .. '\255' or '+'
  local counts = {}
  for i, name in ipairs(call('ZRANGEBYLEX', K.names, from, to, 'LIMIT', 0, request.limit)) do
    counts[i] = count.queue(name)
  end
  return counts
end

function reads.locks()
  local locks = {}
  for _, name in ipairs(count.names()) do
    if request.queue or queue.read(name).locks then
      for _, lock in ipairs(count.locks_of(name)) do locks[#locks + 1] = lock end
    end
  end
  return locks
end

-- Limited queues whose counters of what is in flight differ from what claims hold: doctor asks.
function reads.miscounts()
  local held, names = {}, {}
  for _, key in ipairs(call('HKEYS', K.claims)) do
    local record = claims.read(key)
    local q = record and queue.read(record.queue)
    for at = 1, q and q.limit and #record.seqs or 0, 6 do
      local e = entry.read(sub(record.seqs, at, at + 5))
      local value = e and limit.value(q, e)
      if value then
        held[record.queue] = held[record.queue] or {}
        held[record.queue][value] = (held[record.queue][value] or 0) + 1
      end
    end
  end
  for _, name in ipairs(count.names()) do
    if queue.read(name).limit and not count.same(call('HGETALL', K['inflight:'] .. name), held[name] or {}) then
      names[#names + 1] = name
    end
  end
  return names
end

function reads.documents()
  local documents, prefix = {}, request.prefix
  for _, name in ipairs(call('ZRANGEBYSCORE', K.documented, request.since, '+inf')) do
    if sub(name, 1, #prefix) == prefix then
      documents[#documents + 1] = { name, call('HGET', K.documents, name) }
    end
  end
  return documents
end

-- Ids and packed lists in turn.
function reads.waits()
  if not request.ids then return call('HGETALL', K.waits) end
  local flat, texts = {}, batch.get(K.waits, request.ids)
  for i, id in ipairs(request.ids) do
    if texts[i] then flat[#flat + 1], flat[#flat + 2] = id, texts[i] end
  end
  return flat
end

function reads.links()
  if not request.target then return call('HGETALL', K.links) end
  local flat = {}
  for _, source in ipairs(call('ZRANGEBYLEX', K['linked:'] .. request.target, '(' .. request.after, '+', 'LIMIT', 0, request.limit)) do
    flat[#flat + 1], flat[#flat + 2] = source, call('HGET', K.links, source)
  end
  return flat
end

function reads.results()
  if not request.batch then return call('HGETALL', K.results) end
  local from = request.after == '' and '-' or '(' .. request.after
  local ids = call('ZRANGEBYLEX', K['batch_results:'] .. request.batch, from, '+', 'LIMIT', 0, request.limit)
  local flat = {}
  for i = 1, #ids do
    local text = call('HGET', K.results, ids[i])
    if text then
      flat[#flat + 1] = ids[i]
      flat[#flat + 1] = text
    end
  end
  return flat
end

function reads.result() return { call('HGET', K.results, request.id) } end

local function look(keys, arguments)
  begin(keys, arguments)
  return { now, reads[request.call]() }
end
