-- Entries: the body, written once, and the item, what changes in a life.
--
-- A body is a prefix (flags, priority, created, first due, expires, length of what follows), then a packed list of
-- what never changes, then the payload. It stays where it is for as long as anything refers to it; an update after an
-- attempt has ended writes a new one, so that the history shows what that attempt saw.
--
-- An item is 34 bytes: priority (100 less it), due, sequence number, number of the body, attempt, generation, fence,
-- flags. `states` says by sequence number where an entry is:
--   absent        it waits as it was put: its item follows from its body
--   W item node   it waits;   P item node: it waits aside, for the limit of its label has no room
--   C claim       it is held by that claim
--   H row         it ended with that row of the history;  D row: and is a dead letter;  G row: which was purged

local UNIQUE, LABELS, EXPIRES, STRIPPED, LINKED = 1, 2, 4, 8, 16 -- flags of a body; LINKED: others wait for it
local SUSPECT, RECORDED = 1, 2 -- flags of an item: RECORDED when a row of the history names its body

local history = {}
local body = { size = 30 } -- of the prefix
local item = { tail = '>I6I6I4I4I4B', size = 34 } -- after priority and due
local entry = {}

-- How an entry that is claimed for the first time may be held, by the flags of its body: see claims.lua.
body.held_as = { [0] = 'plain', [LABELS] = 'marked', [LINKED] = 'marked', [LABELS + LINKED] = 'marked' }

-- --- bodies --------------------------------------------------------------------------------------------

function body.parse(text)
  local flags, priority, created = sunpack('>BBi8', text)
  local expires, size = sunpack('>i8I4', text, 19)
  local meta = decode(sub(text, body.size + 1, body.size + size))
  return {
    id = meta[1], queue = meta[2], codec = meta[3], type = meta[4], labels = meta[5] or false,
    headers = meta[6] or false, unique = meta[7] or false, mode = meta[8] or false, linked = meta[9] or false,
    created = created, first_due = time_of(text, 11), expires = expires ~= 0 and expires or false,
    first_priority = 100 - priority, stripped = flags % LINKED >= STRIPPED, text = text,
  }
end

-- What the end of an entry has to look after: its id, its labels or false, and whether others wait for it. Returns
-- nothing for an entry that is gone.
function body.marks(text)
  if not text then return nil end
  local meta = decode(sub(text, body.size + 1, body.size + sunpack('>I4', text, 27)))
  return meta[1], meta[5], meta[9]
end

function body.payload(e) return sub(e.text, body.size + sunpack('>I4', e.text, 27) + 1) end

-- Without the length of what follows.
function body.prefix(flags, priority, created, first_due, expires)
  return spack('>BBi8', flags, 100 - priority, created) .. time8(first_due) .. spack('>i8', expires)
end

function body.text(e, payload)
  local meta = pack({
    e.id, e.queue, e.codec, e.type, e.labels or false, e.headers or false, e.unique or false, e.mode or false,
    e.linked or nil,
  })
  local flags = (e.unique and UNIQUE or 0) + (e.labels and LABELS or 0) + (e.expires and EXPIRES or 0)
    + (e.stripped and STRIPPED or 0) + (e.linked and LINKED or 0)
  return body.prefix(flags, e.first_priority, e.created, e.first_due, e.expires or 0)
    .. spack('>I4', #meta) .. meta .. payload
end

function body.read(field)
  local text = work.bodies[field]
  if text == nil then text = call('HGET', K.entries, field) end
  return text
end

-- --- items -----------------------------------------------------------------------------------------------

-- Attempt, generation, fence and flags of an entry that waits as it was put, and of one claimed for the first time.
item.fresh_tail = '\0\0\0\0\0\0\0\1\0\0\0\0\0'
item.first_tail = '\0\0\0\1\0\0\0\1\0\0\0\1\0'

function item.text(e)
  local flags = (e.suspect and SUSPECT or 0) + (e.recorded and RECORDED or 0)
  return char(100 - e.priority) .. time8(e.due)
    .. spack(item.tail, e.seq, e.body, e.attempt, e.generation, e.fence, flags)
end

-- The item of an entry that waits as it was put.
function item.fresh(text, field) return sub(text, 2, 2) .. sub(text, 11, 18) .. field .. field .. item.fresh_tail end

function item.read(e, text)
  local seq, number, attempt, generation, fence, flags = sunpack(item.tail, text, 10)
  e.priority, e.due, e.seq, e.body = 100 - byte(text), time_of(text, 2), seq, number
  e.attempt, e.generation, e.fence = attempt, generation, fence
  e.suspect, e.recorded = flags % 2 == SUSPECT, flags >= RECORDED
  return e
end

function item.body_field(text) return sub(text, 16, 21) end

-- The member of a sorted set: an item that sorts by priority, due and sequence, in a FIFO queue by sequence; of an
-- entry that waits as it was put, only the beginning.
function item.member(text, fifo)
  local field = sub(text, 10, 15)
  local head = fifo and sub(text, 1, 1) .. field .. sub(text, 2, 9) or sub(text, 1, 15)
  local tail = sub(text, 16)
  return tail == field .. item.fresh_tail and head or head .. tail
end

function item.of_member(member, fifo)
  local field = fifo and sub(member, 2, 7) or sub(member, 10, 15)
  local tail = #member > 15 and sub(member, 16) or field .. item.fresh_tail
  if fifo then return sub(member, 1, 1) .. sub(member, 8, 15) .. field .. tail end
  return sub(member, 1, 15) .. tail
end

-- --- live entries ------------------------------------------------------------------------------------------

-- Sequence number, packed, of an id; nil for one that nobody knows.
function entry.field(id)
  local field = work.ids[id]
  if field == nil then field = call('HGET', K.ids, id) end
  return field or nil
end

-- The entry from its item, its body, and where it is; nil if its body was deleted by hand. One of a claim of a kind has
-- no error to be read.
function entry.build(text, node, kind)
  local content = body.read(item.body_field(text))
  if not content then return nil end
  local e = item.read(body.parse(content), text)
  e.node = node
  e.error = not kind and e.fence > 0 and call('HGET', K.errors, sub(text, 10, 15)) or false
  return e
end

function entry.load(field)
  local state = call('HGET', K.states, field)
  local kind = state and sub(state, 1, 1)
  if not state then
    local text = body.read(field)
    return text and entry.build(item.fresh(text, field), '')
  elseif kind == 'W' or kind == 'P' then
    local e = entry.build(sub(state, 2, 35), sub(state, 36))
    if e then e.parked = kind == 'P' end
    return e
  elseif kind == 'C' then
    local record = claims.read(sub(state, 2))
    local text = record and claims.item(record, field)
    local e = text and entry.build(text, record.node, record.kind)
    if e then e.claim = record end
    return e
  end
end

-- The live entry of a packed sequence number, or false.
function entry.read(field)
  local e = work.entries[field]
  if e == nil then
    e = entry.load(field) or false
    work.entries[field] = e
  end
  return e
end

function entry.by_id(id)
  local field = entry.field(id)
  return field and entry.read(field)
end

-- The entry, if this token's lease on it is the current one.
function entry.held(field, token)
  local e = entry.read(field)
  return e and e.claim and entry.token(e) == token and e
end

function entry.token(e) return e.fence .. '-' .. e.claim.claim end

function entry.change(field, e)
  if work.was[field] == nil then
    local old = work.entries[field] or false
    work.was[field] = old
    work.changed[#work.changed + 1] = field
    if old and old.claim then work.claims_left[old.claim.key] = true end
  end
  set(work.entries, field, e)
end

function entry.copy(e)
  local new = {}
  for name, value in pairs(e) do new[name] = value end
  new.parked = false -- what changes takes its place again
  return new
end

function entry.given_back(e)
  local new = entry.copy(e)
  new.claim = nil
  return new
end

-- A changed content: in place, or as a new body where a row of the history names the old one.
function entry.rewrite(e, payload, again)
  if again and e.recorded then
    if history.names(e.id, packed(e.body), '-') then e.body = next_number('seq') end
    e.recorded = false
  end
  e.text = body.text(e, payload)
  set(work.bodies, packed(e.body), e.text)
end
