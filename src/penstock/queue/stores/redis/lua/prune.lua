-- Removes the oldest rows that are older than asked for, and what is known only for their sake.

local pruned = tonumber(call('HGET', COUNTERS, 'pruned')) or 0
local last = tonumber(call('HGET', COUNTERS, 'row')) or 0
local before = now - request.older
local gone = 0
local fields = {}
for seq = pruned + 1, min(last, pruned + request.limit) do fields[#fields + 1] = pad(seq) end
local texts = get_many(ROWS, fields)

local function prune_row(seq, field, text)
  local head, e = read_ended(text)
  if head[3] >= before then return false end
  local id = e[ID]
  later('HDEL', ROWS, field)
  later('ZREM', HISTORY_OF .. e[QUEUE], field)
  if e[LABELS] then each_label(e, 'ZREM', ROW_LABEL, nil, field) end
  if call('HGET', ENDED, id) == field then
    later('HDEL', ENDED, id)
    -- A live one may have been given the same id, and a dead letter is known as long as it is kept.
    if call('HEXISTS', LIVE, id) == 0 and call('HEXISTS', DEAD, id) == 0 then later('HDEL', RECEIPTS, id) end
  else
    later('ZREM', TRAIL .. id, field)
  end
  local final = head[1] == 'done' or head[1] == 'cancelled' or head[1] == 'expired'
  if final then later('HDEL', PAYLOADS, pad(e[SEQ])) end
  return true
end

begin_writing()
for i, field in ipairs(fields) do
  local text = texts[i]
  if text then
    if not prune_row(pruned + 1, field, text) then break end
    gone = gone + 1
  end
  pruned = pruned + 1
end
later('HSET', COUNTERS, 'pruned', format('%.0f', pruned))
send()
return { now, gone }
