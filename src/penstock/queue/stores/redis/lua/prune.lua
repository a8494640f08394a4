-- Removes the oldest rows that are older than asked for, and what is known only for their sake.

local pruned = tonumber(call('HGET', K.counters, 'pruned')) or 0
local last = tonumber(call('HGET', K.counters, 'row')) or 0
local before = now - request.older
local gone = 0
local fields = {}
for seq = pruned + 1, min(last, pruned + request.limit) do fields[#fields + 1] = pad(seq) end
local texts = batch.get(K.rows, fields)

local function prune_row(seq, field, text)
  local head, e = ended.parse(text)
  if head[3] >= before then return false end
  local id = e[ID]
  later('HDEL', K.rows, field)
  later('ZREM', K.history .. ':' .. e[QUEUE], field)
  if e[LABELS] then index.labels(e, K.row_label, field) end
  if call('HGET', K.ended, id) == field then
    later('HDEL', K.ended, id)
    -- A live one may have been given the same id, and a dead letter is known as long as it is kept.
    if call('HEXISTS', K.live, id) == 0 and call('HEXISTS', K.dead, id) == 0 then later('HDEL', K.receipts, id) end
  else
    later('ZREM', K.trail .. ':' .. id, field)
  end
  local final = head[1] == 'done' or head[1] == 'cancelled' or head[1] == 'expired'
  if final then later('HDEL', K.payloads, pad(e[SEQ])) end
  return true
end

batch.begin()
for i, field in ipairs(fields) do
  local text = texts[i]
  if text then
    if not prune_row(pruned + 1, field, text) then break end
    gone = gone + 1
  end
  pruned = pruned + 1
end
later('HSET', K.counters, 'pruned', format('%.0f', pruned))
batch.send()
return { now, gone }
