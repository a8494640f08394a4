-- Claims: one record for all that a claim took from a queue; the lease is the record's.
--
-- A record is a packed list (claim id, owner, claimed, most attempts or false, queue, node, kind), then the packed
-- sequence numbers of what it holds, then their items. `claims` keeps records by key, `until` when they run out. The kind
-- says how much has to be looked after when its entries end: 'plain' nothing, 'marked' labels and links, false anything.

function claims.parse(key, text)
  local size = sunpack('>H', text)
  local head = decode(sub(text, 3, 2 + size))
  local count = (#text - 2 - size) / (6 + item.size)
  return {
    key = key, claim = head[1], owner = head[2], claimed = head[3], most = head[4], queue = head[5], node = head[6],
    kind = head[7], seqs = sub(text, 3 + size, 2 + size + 6 * count), items = sub(text, 3 + size + 6 * count),
  }
end

function claims.text(record)
  local head = pack({
    record.claim, record.owner, record.claimed, record.most, record.queue, record.node, record.kind,
  })
  return spack('>H', #head) .. head .. record.seqs .. record.items
end

function claims.read(key)
  local record = work.claims[key]
  if record == nil then
    local text = call('HGET', K.claims, key)
    record = text and claims.parse(key, text) or false
    work.claims[key] = record
  end
  return record
end

-- Which of the entries it holds this is, from 0 on.
function claims.index(record, field)
  local start = 1
  while true do
    local at = string.find(record.seqs, field, start, true)
    if not at then return nil end
    if at % 6 == 1 then return (at - 1) / 6 end
    start = at + 1
  end
end

function claims.item(record, field)
  local index = claims.index(record, field)
  return index and sub(record.items, item.size * index + 1, item.size * index + item.size)
end

-- The record by which this token holds an entry, without a look at the body; nil if it does not.
function claims.holding(field, token)
  local state = call('HGET', K.states, field)
  local record = state and sub(state, 1, 1) == 'C' and claims.read(sub(state, 2))
  local text = record and claims.item(record, field)
  if not text or (sunpack('>I4', text, 30)) .. '-' .. record.claim ~= token then return nil end
  return call('HEXISTS', K.entries, item.body_field(text)) == 1 and record or nil
end

function claims.take_out(record, field)
  local index = claims.index(record, field)
  if not index then return end
  record.seqs = sub(record.seqs, 1, 6 * index) .. sub(record.seqs, 6 * index + 7)
  local size = item.size
  record.items = sub(record.items, 1, size * index) .. sub(record.items, size * index + size + 1)
end

function claims.remove(record, field)
  claims.take_out(record, field)
  work.claims_changed[record.key] = record
end

function claims.save(record)
  if record.seqs == '' then
    later('HDEL', K.claims, record.key)
    later('ZREM', K['until'], record.key)
    work.claims[record.key] = false
  else
    later('HSET', K.claims, record.key, claims.text(record))
  end
end

function claims.write()
  for _, record in pairs(work.claims_changed) do claims.save(record) end
  work.claims_changed = {}
end

-- Moves some of what a record holds to a record of their own, whose lease ends at another time.
function claims.split(record, fields)
  local other = {}
  for name, value in pairs(record) do other[name] = value end
  local number = call('HINCRBY', K.counters, 'split', 1)
  other.key = record.claim .. ':s' .. number
  other.seqs, other.items = '', ''
  for _, field in ipairs(fields) do
    other.seqs = other.seqs .. field
    other.items = other.items .. claims.item(record, field)
    claims.remove(record, field)
    later('HSET', K.states, field, 'C' .. other.key)
  end
  work.claims[other.key], work.claims_changed[other.key] = other, other
  return other
end
