-- Takes in cargo of another store, behind what is there: entries, dead letters, rows, and holds of unique ids.
--
-- One piece is a list: part, the entry, how it ended (as in a row), and whether a payload goes with it.

local function take_in(piece, payload)
  local part, e, head = piece[1], piece[2], piece[3]
  e[SEQ] = entry.next_number('seq')
  if payload then set(work.payloads, pad(e[SEQ]), payload) end
  if part == 'live' then
    entry.change(e[ID], e)
    return
  end
  local packed = pack(head)
  local text = struct.pack('<H', #packed) .. packed .. entry.text(e)
  if part == 'dead' then
    set(work.buried, #work.buried + 1, { e = e, text = text })
    queue.look(e[QUEUE])
  else
    set(work.rows, #work.rows + 1, { seq = entry.next_number('row'), text = text, e = e, final = piece[5] })
  end
end

if batch.begin() then return remember({ now, { 0, 'full' } }) end
local at = 4
for i = 1, #request.cargo do
  local piece = request.cargo[i]
  local payload = piece[4] and ARGV[at]
  if payload then at = at + 1 end
  take_in(piece, payload)
end
for i = 1, #request.holds do
  local one = request.holds[i]
  hold.take(hold.scope(one[1], one[2]), one[3], one[4])
end
flush()
ring()
return remember({ now, { 1 } })
