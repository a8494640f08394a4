-- Calls one after the other: of each the steps, each by itself, the notes, then the claim.

-- A document is two numbers, its version and when it was written, and its value.
local function stored_document(name)
  local text = call('HGET', K.documents, name)
  if not text then return 0 end
  local version = struct.unpack('<d', text)
  return version, sub(text, 17)
end

-- A note: name, the version it asks for or false, and which argument is its value or 0: remove it.
local function write_note(note)
  local name, wanted, at = note[1], note[2], note[3]
  local value = at > 0 and ARGV[at]
  local version, there = stored_document(name)
  if wanted and wanted ~= version then
    if not value then return not there and 1 or 0 end
    -- Its own value, one version on, is what this very write has left before.
    return version == wanted + 1 and there == value and 1 or 0
  end
  if value then
    call('HSET', K.documents, name, struct.pack('<dd', version + 1, now) .. value)
    call('ZADD', K.documented, format('%.0f', now), name)
  else
    call('HDEL', K.documents, name)
    call('ZREM', K.documented, name)
  end
  return 1
end

local replies = {}
steps.full = batch.begin()
for i, one in ipairs(request.calls) do
  local todo, wish, notes = one[1], one[2], one[3]
  local results, noted = {}, {}
  steps.read_ahead(todo)
  for n = 1, #todo do results[n] = steps.take(todo[n]) end
  if wish then flush() end
  for n = 1, #notes do noted[n] = write_note(notes[n]) end
  replies[i] = { results, wish and take_claim(wish) or false, noted }
end
flush()
ring()
return { now, replies }
