-- Searches over live entries, dead letters and rows, in pages: at most so many are looked at in one call.

local PAGE = 2000
local where = request.where
local names = {}

-- --- where candidates come from: sorted sets by sequence number ------------------------------------------

local function label_indexes(prefix)
  local found = {}
  for label, value in pairs(where.labels or {}) do found[#found + 1] = prefix .. ':' .. label .. '=' .. value end
  return found
end

local function smallest(indexes)
  local best, size
  for _, key in ipairs(indexes) do
    local number = call('ZCARD', key)
    if not size or number < size then best, size = key, number end
  end
  return best
end

local function queue_indexes(prefix)
  if where.queue then return { prefix .. ':' .. where.queue } end
  local found, family = {}, where.family or ''
  for _, name in ipairs(call('HKEYS', K.queues)) do
    if sub(name, 1, #family) == family then found[#found + 1] = prefix .. ':' .. name end
  end
  return found
end

local function in_order(found)
  table.sort(found, function(a, b)
    if where.newest then return a[1] > b[1] end
    return a[1] < b[1]
  end)
  return found
end

-- The next pairs (sequence, name) beyond the cursor, over all the indexes together, and whether there may be more. Of
-- many indexes only a little is read at a time: then what comes after the end of a part is left for the next time.
local function candidates(indexes, cursor)
  local command, from, to = 'ZRANGEBYSCORE', '-inf', '+inf'
  if where.newest then command, from, to = 'ZREVRANGEBYSCORE', '+inf', '-inf' end
  if cursor then from = format('(%.0f', cursor) end
  local share = max(20, floor(PAGE / max(1, #indexes)))
  local found, bound = {}, nil
  for _, key in ipairs(indexes) do
    local page = call(command, key, from, to, 'WITHSCORES', 'LIMIT', 0, share)
    for n = 1, #page, 2 do found[#found + 1] = { tonumber(page[n + 1]), page[n] } end
    if #page == 2 * share then
      local last = tonumber(page[#page])
      if not bound or (where.newest and last > bound) or (not where.newest and last < bound) then bound = last end
    end
  end
  if #indexes > 1 then
    in_order(found)
    while bound and #found > 0 and ((where.newest and found[#found][1] < bound) or
      (not where.newest and found[#found][1] > bound)) do
      found[#found] = nil
    end
  end
  return found, bound ~= nil
end

-- --- conditions ----------------------------------------------------------------------------------------

local function fits(e, state, at)
  if where.queue and e[QUEUE] ~= where.queue then return false end
  if where.family and sub(e[QUEUE], 1, #where.family) ~= where.family then return false end
  if where.states then
    local wanted = false
    for _, one in ipairs(where.states) do wanted = wanted or one == state end
    if not wanted then return false end
  end
  if where.from and at < where.from then return false end
  if where.before and at >= where.before then return false end
  if where.labels then
    local labels = e[LABELS] and cjson.decode(e[LABELS]) or {}
    for label, value in pairs(where.labels) do
      if labels[label] ~= value then return false end
    end
  end
  return true
end

-- --- the three kinds --------------------------------------------------------------------------------------

local function beyond(seq)
  if not where.after then return true end
  if where.newest then return seq < where.after end
  return seq > where.after
end

local function by_ids(texts, seq_of)
  local found = {}
  for i, text in ipairs(texts) do
    local seq = text and seq_of(text)
    if seq and beyond(seq) then found[#found + 1] = { seq, where.ids[i] } end
  end
  return in_order(found), false
end

local kinds = {}

kinds.live = {
  names = function(cursor)
    if where.ids then
      return by_ids(batch.get(K.live, where.ids), function(text) return entry.parse(text)[SEQ] end)
    end
    local labelled = smallest(label_indexes(K.label))
    return candidates(labelled and { labelled } or queue_indexes(K.all), cursor)
  end,
  texts = function(found) return batch.get(K.live, found) end,
  fits = function(text)
    local e = entry.parse(text)
    return fits(e, e[NONCE] and 'leased' or 'waiting', e[DUE]) and e
  end,
}

kinds.dead = {
  names = function(cursor)
    if where.ids then
      return by_ids(batch.get(K.dead, where.ids), function(text)
        local _, e = ended.parse(text)
        return e[SEQ]
      end)
    end
    local labelled = smallest(label_indexes(K.dead_label))
    return candidates({ labelled or (where.queue and K.dead .. ':' .. where.queue) or K.dead_order }, cursor)
  end,
  texts = function(found) return batch.get(K.dead, found) end,
  fits = function(text)
    local head, e = ended.parse(text)
    return fits(e, 'dead', head[3]) and e
  end,
}

-- All rows in order: their numbers have no gaps but those at the old end.
local function numbered(cursor)
  local last = tonumber(call('HGET', K.counters, 'row')) or 0
  local oldest = (tonumber(call('HGET', K.counters, 'pruned')) or 0) + 1
  local found = {}
  if where.newest then
    local start = cursor and min(cursor - 1, last) or last
    for seq = start, max(oldest, start - PAGE + 1), -1 do found[#found + 1] = { seq, pad(seq) } end
  else
    local start = max(oldest, (cursor or 0) + 1)
    for seq = start, min(last, start + PAGE - 1) do found[#found + 1] = { seq, pad(seq) } end
  end
  return found, #found == PAGE
end

local function rows_of_ids()
  local found = {}
  local last = batch.get(K.ended, where.ids)
  for i, id in ipairs(where.ids) do
    local fields = call('ZRANGE', K.trail .. ':' .. id, 0, -1)
    if last[i] then fields[#fields + 1] = last[i] end
    for _, field in ipairs(fields) do
      if beyond(tonumber(field)) then found[#found + 1] = { tonumber(field), field } end
    end
  end
  return in_order(found), false
end

kinds.history = {
  names = function(cursor)
    if where.ids then return rows_of_ids() end
    local index = smallest(label_indexes(K.row_label)) or (where.queue and K.history .. ':' .. where.queue)
    if index then return candidates({ index }, cursor) end
    return numbered(cursor)
  end,
  texts = function(found) return batch.get(K.rows, found) end,
  fits = function(text)
    local head, e = ended.parse(text)
    return fits(e, head[1], head[3]) and e
  end,
}

-- --- the search ---------------------------------------------------------------------------------------------

local kind = kinds[request.kind]
local found, more = kind.names(where.cursor or where.after or nil)
local cursor = found[#found] and found[#found][1]
for i, one in ipairs(found) do names[i] = one[2] end
local texts = kind.texts(names)
local hits, fields, hit_ids = {}, {}, {}
for i, text in ipairs(texts) do
  if #hits == request.limit then
    more = false
    break
  end
  local e = text and kind.fits(text)
  if e then
    hits[#hits + 1] = { names[i], text }
    fields[#fields + 1], hit_ids[#hit_ids + 1] = pad(e[SEQ]), e[ID]
    if request.purge then set(work.exhumed, #work.exhumed + 1, e) end
  end
end
if request.purge then
  batch.begin()
  for _, field in ipairs(fields) do later('HDEL', K.payloads, field) end
  local gone = {}
  for i, e in ipairs(work.exhumed) do gone[i] = { e[ID], e[QUEUE] } end
  flush()
  return remember({ now, gone, more and cursor or -1 })
end
local bodies = batch.get(K.payloads, fields)
local untils = {}
if request.kind == 'live' then
  for i, id in ipairs(hit_ids) do untils[i] = call('ZSCORE', K.leases, id) or '' end
end
for i, hit in ipairs(hits) do hit[3], hit[4] = bodies[i], untils[i] end
return { now, hits, more and cursor or -1 }
