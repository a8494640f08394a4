-- Entries, and the changes of one script to them.
--
-- A script is not rolled back, so nothing is written before everything is decided: changes are collected in tables,
-- a step that fails takes its own back (the journal), and flush() of queues.lua writes what is left, in batches.

local call, pack, decode = redis.call, cmsgpack.pack, cmsgpack.unpack
local format, sub, max, min, floor = string.format, string.sub, math.max, math.min, math.floor

local P = KEYS[1]
local LIVE, PAYLOADS, ROWS, ENDED, DEAD = P .. 'live', P .. 'payloads', P .. 'rows', P .. 'ended', P .. 'dead'
local HOLDS, PERIODS, RECEIPTS = P .. 'holds', P .. 'periods', P .. 'receipts'
local LEASES, EXPIRIES, COUNTERS = P .. 'leases', P .. 'expiries', P .. 'counters'

-- The fields of an entry, kept as one packed list. What is absent is false, never nil: a list has no holes.
local ID, QUEUE, NODE, SEQ, PRIORITY, CREATED, DUE, FIRST_DUE, EXPIRES = 1, 2, 3, 4, 5, 6, 7, 8, 9
local ATTEMPT, GENERATION, FENCE, SUSPECT, PARKED, LABELS, HEADERS = 10, 11, 12, 13, 14, 15, 16
local UNIQUE, MODE, ERROR, CODEC, TYPE, SETTLED = 17, 18, 19, 20, 21, 22
local NONCE, OWNER, CLAIMED, MOST = 23, 24, 25, 26 -- of the lease; without one all false
local FIELDS = 26

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local request = decode(ARGV[2])
local rings = false -- whether something may have become claimable

-- Lua hands at most a few thousand arguments to one command.
local CHUNK = 1000

local function chunks(command, key, list)
  local n = #list
  if n <= CHUNK then
    if n > 0 then call(command, key, unpack(list)) end
    return
  end
  for start = 1, n, CHUNK do
    call(command, key, unpack(list, start, min(start + CHUNK - 1, n)))
  end
end

local function get_many(key, fields)
  local n = #fields
  if n == 0 then return {} end
  if n <= CHUNK then return call('HMGET', key, unpack(fields)) end
  local found = {}
  for start = 1, n, CHUNK do
    local part = call('HMGET', key, unpack(fields, start, min(start + CHUNK - 1, n)))
    for i = 1, #part do found[start + i - 1] = part[i] end
  end
  return found
end

-- --- writes, collected per key ------------------------------------------------------------------

local COMMANDS = { 'ZREM', 'HDEL', 'SREM', 'ZADD', 'HSET', 'SADD' }
local writes = { ZREM = {}, HDEL = {}, SREM = {}, ZADD = {}, HSET = {}, SADD = {} }

local function later(command, key, one, two)
  local lists = writes[command]
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  local n = #list
  list[n + 1] = one
  list[n + 2] = two
end

local function send()
  for i = 1, #COMMANDS do
    local command = COMMANDS[i]
    if next(writes[command]) then
      for key, list in pairs(writes[command]) do chunks(command, key, list) end
      writes[command] = {}
    end
  end
end

-- --- changes that can be taken back ---------------------------------------------------------------

local NOTHING = {}
local journal -- of the step that is being tried

local function set(values, key, value)
  if journal then
    local n = #journal
    local before = values[key]
    journal[n + 1], journal[n + 2] = values, key
    journal[n + 3] = before == nil and NOTHING or before
  end
  values[key] = value
end

local function undo()
  for i = #journal - 2, 1, -3 do
    local before = journal[i + 2]
    if before == NOTHING then before = nil end
    journal[i][journal[i + 1]] = before
  end
  journal = nil
end

-- Whether the server is out of memory. Asked before anything is written: a script that has written may go on writing,
-- and what ends or moves entries has to be possible then, too.
local function is_full()
  local reply = redis.pcall('SETRANGE', P .. 'probe', 0, '')
  return type(reply) == 'table' and reply.err ~= nil and string.find(reply.err, 'OOM', 1, true) ~= nil
end

local function begin_writing() call('HDEL', COUNTERS, '') end

local function fail(...) error({ problem = { ... } }, 0) end

-- Tries something that may fail(); what it gave, or nil and the problem.
local function try(work, ...)
  journal = {}
  local fine, result = pcall(work, ...)
  if fine then
    journal = nil
    return result
  end
  undo()
  if type(result) == 'table' and result.problem then return nil, result.problem end
  error(result, 0)
end

-- --- live entries ---------------------------------------------------------------------------------

local live, was, changed = {}, {}, {} -- by id: as it is now, as it was before this script; the ids in order
local raw = {} -- the text an entry was read from
local payloads = {} -- new ones, by padded sequence number
local counters = {}

local function pad(number) return format('%015.0f', number) end

local function member(e) return pad(e[SEQ]) .. e[ID] end

local function token(e) return format('%.0f', e[FENCE]) .. '-' .. e[NONCE] end

local function read_entry(text)
  if not text then return false end
  local e = decode(text)
  raw[e] = text
  return e
end

local function read(id)
  local e = live[id]
  if e == nil then
    e = read_entry(call('HGET', LIVE, id))
    live[id] = e
  end
  return e
end

local function read_many(ids)
  local texts = get_many(LIVE, ids)
  for i = 1, #ids do
    if live[ids[i]] == nil then live[ids[i]] = read_entry(texts[i]) end
  end
end

local function change(id, e)
  if was[id] == nil then
    was[id] = live[id] or false
    changed[#changed + 1] = id
  end
  set(live, id, e)
end

local function copy(e)
  local new = {}
  for i = 1, FIELDS do new[i] = e[i] end
  new[PARKED] = false -- what changes takes its place anew
  return new
end

local function next_number(name)
  local last = counters[name] or tonumber(call('HGET', COUNTERS, name)) or 0
  set(counters, name, last + 1)
  return last + 1
end

local function payload_of(e)
  local field = pad(e[SEQ])
  return payloads[field] or call('HGET', PAYLOADS, field)
end

local function held(id, its_token)
  local e = read(id)
  return e and e[NONCE] and token(e) == its_token and e
end

-- --- unique ids -------------------------------------------------------------------------------------

local holds = {} -- by scope: "<until or 0> <id>", or false

local function scope_of(queue, key) return queue .. ':' .. key end

local function holder(scope)
  local hold = holds[scope]
  if hold == nil then hold = call('HGET', HOLDS, scope) end
  if not hold then return nil end
  local ends, id = string.match(hold, '^(%d+) (.*)$')
  ends = tonumber(ends)
  if ends > 0 and ends <= now then return nil end
  return id
end

local function let_go(e)
  if e[UNIQUE] then
    local scope = scope_of(e[QUEUE], e[UNIQUE])
    local hold = holds[scope]
    if hold == nil then hold = call('HGET', HOLDS, scope) end
    if hold and string.match(hold, '^%d+ (.*)$') == e[ID] then set(holds, scope, false) end
  end
end

-- --- the way out: history rows and dead letters -------------------------------------------------------

local rows, buried, exhumed = {}, {}, {}

-- A row or a dead letter: what ended, then the entry as it was. Its payload stays where it is, under its sequence.
local function ended_text(e, state, started, err, attempt, settled)
  local head = pack({ state, started or false, now, err or false, attempt, settled or false })
  return struct.pack('<H', #head) .. head .. (raw[e] or pack(e))
end

local function read_ended(text)
  local size = struct.unpack('<H', text)
  return decode(sub(text, 3, 2 + size)), decode(sub(text, 3 + size))
end

local function record(e, state, err, started, settled, final)
  local attempt = e[ATTEMPT]
  if not e[NONCE] then
    attempt = attempt + 1
  elseif not started then
    started = e[CLAIMED]
  end
  local row = { seq = next_number('row'), e = e, final = final }
  row.text = ended_text(e, state, started, err, attempt, settled)
  set(rows, #rows + 1, row)
end

local function finish(e, state, err, started, settled)
  record(e, state, err, started, settled, true)
  if state == 'dead' then
    set(buried, #buried + 1, { e = e, text = ended_text(e, state, started, err or e[ERROR], e[ATTEMPT], settled) })
  end
  change(e[ID], false)
  if e[MODE] ~= 'period' then let_go(e) end
end

-- The last end of an id: its head and the entry.
local function last_end(id)
  for i = #rows, 1, -1 do
    if rows[i].final and rows[i].e[ID] == id then return read_ended(rows[i].text) end
  end
  local seq = call('HGET', ENDED, id)
  local text = seq and call('HGET', ROWS, seq) or call('HGET', DEAD, id)
  if text then return read_ended(text) end
end

-- The entry without its lease.
local function given_back(e)
  local new = copy(e)
  new[NONCE], new[OWNER], new[CLAIMED], new[MOST] = false, false, false, false
  return new
end
