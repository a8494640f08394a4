-- Entries, and the changes of one script to them.
--
-- A script is not rolled back, so nothing is written before everything is decided: changes are collected in tables,
-- a step that fails takes its own back (the journal), and flush() of queues.lua writes what is left, in batches.
--
-- An entry is a list; e[QUEUE] stands for the number of that field, which scripts.py fills in. What is absent is false,
-- never nil: a list has no holes. Its text begins with a prefix of what leases change, so that a plain entry, with
-- nothing about it that needs looking after, is claimed and ended without being unpacked. Functions live in a few tables because a script is built anew for every call, and
-- what a function shares with others costs time then, most of all what it shares with many.

local call, pack, decode = redis.call, cmsgpack.pack, cmsgpack.unpack
local format, sub, max, min, floor = string.format, string.sub, math.max, math.min, math.floor

-- Keys by their names: K.live is '{space}:live'.
local K = setmetatable({}, {
  __index = function(known, name)
    local key = KEYS[1] .. name
    known[name] = key
    return key
  end,
})

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local request = decode(ARGV[2])

-- What the script has decided so far. By id: entries as they are now and as they were; ids in the order of change.
local work = {
  live = {}, was = {}, changed = {},
  texts = {}, -- entries that were read and not yet unpacked, by id
  raw = {}, -- the text of an entry that is as it was read
  payloads = {}, -- new ones, by padded sequence number; false: to be deleted
  counters = {}, holds = {}, rows = {}, buried = {}, exhumed = {}, receipts = {},
  done = {}, -- rows of plain successes, by id
  rings = false, -- whether something may have become claimable
  journal = nil, -- of the step that is being tried
}

-- --- reading and writing in batches -----------------------------------------------------------------

local batch = {
  most = 1000, -- Lua hands at most a few thousand arguments to one command
  commands = { 'ZREM', 'HDEL', 'SREM', 'ZADD', 'HSET', 'SADD' },
  ZREM = {}, HDEL = {}, SREM = {}, ZADD = {}, HSET = {}, SADD = {}, -- arguments by key
}

local function later(command, key, one, two)
  local lists = batch[command]
  local list = lists[key]
  if list then
    local n = #list
    list[n + 1] = one
    list[n + 2] = two
  else
    lists[key] = { one, two }
  end
end

function batch.run(command, key, list)
  local n = #list
  for start = 1, n, batch.most do
    call(command, key, unpack(list, start, min(start + batch.most - 1, n)))
  end
end

function batch.send()
  for i = 1, #batch.commands do
    local command = batch.commands[i]
    local lists = batch[command]
    if next(lists) then
      for key, list in pairs(lists) do batch.run(command, key, list) end
      batch[command] = {}
    end
  end
end

function batch.get(key, fields)
  local n = #fields
  if n == 0 then return {} end
  if n <= batch.most then return call('HMGET', key, unpack(fields)) end
  local found = {}
  for start = 1, n, batch.most do
    local part = call('HMGET', key, unpack(fields, start, min(start + batch.most - 1, n)))
    for i = 1, #part do found[start + i - 1] = part[i] end
  end
  return found
end

-- Whether the server is out of memory. Asked before anything is written: then puts are refused, and what ends or moves
-- entries goes on, for a script that has written something may go on writing.
function batch.begin()
  local reply = redis.pcall('SETRANGE', K.probe, 0, '')
  if type(reply) ~= 'table' or not reply.err then return false end
  if not string.find(reply.err, 'OOM', 1, true) then error(reply) end
  call('HDEL', K.counters, '')
  return true
end

-- --- changes that can be taken back ---------------------------------------------------------------

local NOTHING = {}

local function set(values, key, value)
  local journal = work.journal
  if journal then
    local n = #journal
    local before = values[key]
    if before == nil then before = NOTHING end
    journal[n + 1], journal[n + 2], journal[n + 3] = values, key, before
  end
  values[key] = value
end

local function fail(...) error({ problem = { ... } }, 0) end

-- Tries something that may fail(): what it gave, or nil and the problem, with all it changed taken back.
local function try(attempt, ...)
  local journal = {}
  work.journal = journal
  local fine, result = pcall(attempt, ...)
  work.journal = nil
  if fine then return result end
  for i = #journal - 2, 1, -3 do
    local before = journal[i + 2]
    if before == NOTHING then before = nil end
    journal[i][journal[i + 1]] = before
  end
  if type(result) == 'table' and result.problem then return nil, result.problem end
  error(result, 0)
end

-- --- live entries ---------------------------------------------------------------------------------

local function pad(number) return format('%015.0f', number) end

local entry = {}

function entry.member(e) return pad(e[SEQ]) .. e[ID] end

function entry.token(e) return e[FENCE] .. '-' .. e[NONCE] end

-- What an entry keeps of its endings, so that a repeat of one is known: the ends of earlier generations, and what last
-- gave it back, one per line.
function entry.settlement(token, outcome) return token .. ' ' .. outcome end

function entry.settlements(e, token, outcome)
  local lines = {}
  for line in string.gmatch(e[SETTLED] or '', '[^\n]+') do
    local how = sub(line, -5)
    if how == ' done' or how == ' dead' then lines[#lines + 1] = line end
  end
  if #lines >= entry.most_settlements then table.remove(lines, 1) end
  lines[#lines + 1] = entry.settlement(token, outcome)
  return table.concat(lines, '\n')
end

entry.most_settlements = 8

function entry.has_settled(e, token, outcome)
  local lines = '\n' .. (e[SETTLED] or '') .. '\n'
  return string.find(lines, '\n' .. entry.settlement(token, outcome) .. '\n', 1, true) ~= nil
end

-- Fence, attempt, claimed, most attempts (0: any), whether it needs care, queue, nonce, owner; without a lease '' and 0.
-- What follows in the text is the list; where it says otherwise, the prefix is right.
entry.prefix = '<I4I4dI4BBc0Hc0Hc0'

function entry.parse(text)
  if not text then return false end
  local fence, attempt, claimed, most, _, _, nonce, owner, rest = struct.unpack(entry.prefix, text)
  local e = decode(sub(text, rest))
  e[FENCE], e[ATTEMPT] = fence, attempt
  if nonce == '' then
    e[NONCE], e[OWNER], e[CLAIMED], e[MOST] = false, false, false, false
  else
    e[NONCE], e[OWNER], e[CLAIMED], e[MOST] = nonce, owner, claimed, most > 0 and most
  end
  work.raw[e] = text
  return e
end

function entry.text(e)
  local name, nonce, owner = e[QUEUE], e[NONCE] or '', e[OWNER] or ''
  local care = (e[EXPIRES] or e[NODE] or e[LABELS] or e[UNIQUE]) and 1 or 0
  return struct.pack(
    entry.prefix, e[FENCE], e[ATTEMPT], e[CLAIMED] or 0, e[MOST] or 0, care, #name, name, #nonce, nonce, #owner, owner
  ) .. pack(e)
end

function entry.read(id)
  local e = work.live[id]
  if e == nil then
    local text = work.texts[id]
    if text == nil then text = call('HGET', K.live, id) end
    e = entry.parse(text)
    work.live[id] = e
  end
  return e
end

function entry.change(id, e)
  if work.was[id] == nil then
    work.was[id] = work.live[id] or false
    work.changed[#work.changed + 1] = id
  end
  set(work.live, id, e)
end

function entry.copy(e)
  local new = {}
  for i = 1, #e do new[i] = e[i] end
  new[PARKED] = false -- what changes takes its place anew
  return new
end

-- The entry without its lease.
function entry.given_back(e)
  local new = entry.copy(e)
  new[NONCE], new[OWNER], new[CLAIMED], new[MOST] = false, false, false, false
  return new
end

function entry.next_number(name)
  local last = work.counters[name] or tonumber(call('HGET', K.counters, name)) or 0
  set(work.counters, name, last + 1)
  return last + 1
end

function entry.payload(e)
  local field = pad(e[SEQ])
  return work.payloads[field] or call('HGET', K.payloads, field)
end

-- The entry, if this token's lease on it is the current one.
function entry.held(id, token)
  local e = entry.read(id)
  return e and e[NONCE] and entry.token(e) == token and e
end

-- --- unique ids -------------------------------------------------------------------------------------

local hold = {} -- kept by queue and key as "<end or 0> <id>"

function hold.scope(queue, key) return queue .. ':' .. key end

function hold.read(scope)
  local text = work.holds[scope]
  if text == nil then text = call('HGET', K.holds, scope) end
  if not text then return nil end
  local ends, id = string.match(text, '^(%d+) (.*)$')
  return id, tonumber(ends)
end

function hold.holder(scope)
  local id, ends = hold.read(scope)
  if id and (ends == 0 or ends > now) then return id end
end

function hold.take(scope, id, ends) set(work.holds, scope, format('%.0f ', ends) .. id) end

function hold.let_go(e)
  if e[UNIQUE] then
    local scope = hold.scope(e[QUEUE], e[UNIQUE])
    if hold.read(scope) == e[ID] then set(work.holds, scope, false) end
  end
end

-- --- the way out: history rows and dead letters -------------------------------------------------------

local ended = {}

-- A row or a dead letter: how it ended, then the entry as it was. Its payload stays where it is.
function ended.text(text, state, started, err, attempt, settled)
  local head = pack({ state, started or false, now, err or false, attempt, settled or false })
  return struct.pack('<H', #head) .. head .. text
end

function ended.parse(text)
  local size = struct.unpack('<H', text)
  return decode(sub(text, 3, 2 + size)), entry.parse(sub(text, 3 + size))
end

-- The row of an attempt that ends, or of an entry that ends with nobody working on it.
function ended.record(e, state, err, started, settled, final)
  local attempt = e[ATTEMPT]
  if not e[NONCE] then
    attempt = attempt + 1
  elseif not started then
    started = e[CLAIMED]
  end
  local text = ended.text(work.raw[e] or entry.text(e), state, started, err, attempt, settled)
  set(work.rows, #work.rows + 1, { seq = entry.next_number('row'), text = text, e = e, final = final })
end

-- The one way out of the live entries.
function ended.finish(e, state, err, started, settled)
  ended.record(e, state, err, started, settled, true)
  if state == 'dead' then
    local text = ended.text(work.raw[e] or entry.text(e), state, started, err or e[ERROR], e[ATTEMPT], settled)
    set(work.buried, #work.buried + 1, { e = e, text = text })
  end
  entry.change(e[ID], false)
  if e[MODE] ~= 'period' then hold.let_go(e) end
end

-- The last end of an id: how it ended, and the entry.
function ended.last(id)
  for i = #work.rows, 1, -1 do
    local row = work.rows[i]
    if row.final and row.e[ID] == id then return ended.parse(row.text) end
  end
  local seq = not work.done[id] and call('HGET', K.ended, id)
  local text = work.done[id] or seq and call('HGET', K.rows, seq) or call('HGET', K.dead, id)
  if text then return ended.parse(text) end
end
