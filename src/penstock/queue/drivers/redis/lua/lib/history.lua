-- History and dead letters: the way out of the live entries.
--
-- A record of the history is a packed list (state, ended, claim id, owner, queue, error, node, settled by its owner),
-- then the items of the attempts that ended together, then when each started (0: never). Each attempt is a row with a
-- number of its own: the record is kept under the number of its first, packed. `trail:<id>` has the records of an id's
-- earlier attempts and ends; that of its last end is named by its state.

history.row, history.most = item.size + 8, 1000 -- bytes of a row, and rows of a record at most

function history.text(head, items, starts)
  local packed_head = pack(head)
  return spack('>I4', #packed_head) .. packed_head .. items .. starts
end

function history.parse(text)
  local size = sunpack('>I4', text)
  local head = decode(sub(text, 5, 4 + size))
  local rows = sub(text, 5 + size)
  local count = #rows / history.row
  return {
    state = head[1], ended = head[2], claim = head[3], owner = head[4], queue = head[5], error = head[6],
    node = head[7], settled = head[8], count = count, items = sub(rows, 1, item.size * count),
    starts = sub(rows, item.size * count + 1),
  }
end

function history.item(record, index) return sub(record.items, item.size * index + 1, item.size * index + item.size) end

-- The item of an entry among those of a record.
function history.item_of(record, field)
  for index = 0, record.count - 1 do
    local text = history.item(record, index)
    if sub(text, 10, 15) == field then return text end
  end
end

function history.read(key)
  for i = #work.rows, 1, -1 do
    if work.rows[i].key == key then return history.parse(work.rows[i].text) end
  end
  local text = call('HGET', K.history, key)
  return text and history.parse(text)
end

-- The row of an attempt that ends, or of an entry that ends with nobody working on it. Its key.
function history.add(e, state, err, started, settled)
  local held = e.claim
  local row = entry.copy(e)
  if not held then row.attempt = e.attempt + 1 elseif not started then started = held.claimed end
  local head = {
    state, now, held and held.claim or false, held and held.owner or false, e.queue, err or false, e.node,
    settled or false,
  }
  local key = packed(next_number('history'))
  local text = history.text(head, item.text(row), spack('>i8', started or 0))
  set(work.rows, #work.rows + 1, { key = key, text = text, queue = e.queue, labels = e.labels })
  return key
end

-- A row after which the entry lives on; who gives it back marks its body as recorded.
function history.passing(e, state, err, started, settled)
  local key = history.add(e, state, err, started, settled)
  work.rows[#work.rows].trail = e.id
  return key
end

-- The one way out of the live entries.
function history.finish(e, state, err, started, settled)
  local field = packed(e.seq)
  local key = history.add(e, state, err, started, settled)
  work.rows[#work.rows].last = { field = field, text = (state == 'dead' and 'D' or 'H') .. key }
  if state == 'dead' then
    set(work.buried, #work.buried + 1, { e = e, error = err or e.error, number = next_number('dead') })
  end
  entry.change(field, false)
  if e.mode ~= 'period' then hold.let_go(e) end
  if e.linked then link.ended(e.id, state) end
end

-- The last end of a sequence number: its record, the item, and what its state says; nil while it lives or is unknown.
function history.last(field)
  for i = #work.rows, 1, -1 do
    local row = work.rows[i]
    if row.last and row.last.field == field then
      local record = history.parse(row.text)
      return record, history.item_of(record, field), row.last.text
    end
  end
  local state = call('HGET', K.states, field)
  local kind = state and sub(state, 1, 1)
  if kind ~= 'H' and kind ~= 'D' and kind ~= 'G' then return nil end
  local record = history.read(sub(state, 2))
  if record then return record, history.item_of(record, field), state end
  if kind == 'D' then return nil, nil, state end -- its row was pruned, the letter is kept
end

-- The live or ended entry behind an id, as far as a repeated put has to know it.
function history.known(field)
  local e = entry.read(field)
  if e then return e end
  local _, text, state = history.last(field)
  if not text then
    local letter = state and call('HGET', K.dead, field)
    text = letter and sub(letter, 9, 8 + item.size)
  end
  return text and entry.build(text, '')
end

-- Whether a row of this id, of those that begin there, names this body.
function history.names(id, number, from)
  for i = 1, #work.rows do
    local row = work.rows[i]
    if row.trail == id and item.body_field(history.item(history.parse(row.text), 0)) == number then return true end
  end
  for _, key in ipairs(call('ZRANGEBYLEX', K['trail:'] .. id, from, '+')) do
    local record = history.read(key)
    for index = 0, record and record.count - 1 or -1 do
      if item.body_field(history.item(record, index)) == number then return true end
    end
  end
  return false
end

function history.write_labels(labels, key, name, adds, score)
  for label, value in pairs(labels) do
    local at = key .. label .. '=' .. value
    if adds then later('ZADD', at, score or 0, name) else later('ZREM', at, name) end
  end
end

function history.write()
  for i = 1, #work.rows do
    local row = work.rows[i]
    later('HSET', K.history, row.key, row.text)
    later('ZADD', K['history:'] .. row.queue, 0, row.key)
    if row.labels then history.write_labels(row.labels, K['row_label:'], row.key, true) end
    if row.trail then later('ZADD', K['trail:'] .. row.trail, 0, row.key) end
    if row.last then later('HSET', K.states, row.last.field, row.last.text) end
  end
  work.rows = {}
end

-- --- dead letters ----------------------------------------------------------------------------------------

-- A letter is when it died, its item, and as a packed list its node and its error. Letters are numbered in the order of
-- death: the scores of the sets they are found in.
function history.letter(e, err) return spack('>i8', now) .. item.text(e) .. pack({ e.node, err or false }) end

function history.read_letter(text)
  local rest = decode(sub(text, 9 + item.size))
  return sunpack('>i8', text), sub(text, 9, 8 + item.size), rest[1], rest[2]
end

function history.bury(field, e, text, number)
  later('HSET', K.dead, field, text)
  history.number(field, e, number)
end

function history.number(field, e, number)
  later('ZADD', K['dead:'] .. e.queue, number, field)
  later('ZADD', K.dead_all, number, field)
  if e.labels then history.write_labels(e.labels, K['dead_label:'], field, true, number) end
end

function history.exhume(e)
  local field = packed(e.seq)
  later('HDEL', K.dead, field)
  later('ZREM', K['dead:'] .. e.queue, field)
  later('ZREM', K.dead_all, field)
  if e.labels then history.write_labels(e.labels, K['dead_label:'], field, false) end
  queue.look(e.queue)
end

function history.write_dead()
  for i = 1, #work.exhumed do history.exhume(work.exhumed[i]) end
  for i = 1, #work.buried do
    local e = work.buried[i].e
    local text = work.buried[i].text or history.letter(e, work.buried[i].error)
    history.bury(packed(e.seq), e, text, work.buried[i].number)
  end
  work.exhumed, work.buried = {}, {}
end
