-- The call at work: its time, its keys, what it has decided so far, and how that is written.
--
-- A function is not rolled back, so nothing is written before everything is decided: changes are collected in tables, a
-- step that fails takes its own back (the journal), and flush() writes what is left, in batches. The tables outlive
-- the call, so begin() empties them.

-- What the server offers; not there while the library is being loaded, so the first call binds them.
local call, pack, decode, spack, sunpack, format, sub, byte, char, concat, max, min, floor

local function bind()
  call, pack, decode, spack, sunpack = redis.call, cmsgpack.pack, cmsgpack.unpack, struct.pack, struct.unpack
  format, sub, byte, char, concat = string.format, string.sub, string.byte, string.char, table.concat
  max, min, floor = math.max, math.min, math.floor
end

local spaces = {} -- keys by their names, for each space: K.states is '{space}:states'
local K, ARGS, now, request

-- What the call has decided so far.
local work = {}
local queue = {}
local claims = {}
local batch = {
  most = 1000, -- Lua hands at most a few thousand arguments to one command
  commands = { 'ZREM', 'HDEL', 'SREM', 'ZADD', 'HSET', 'SADD' },
}

local function space_keys(prefix)
  local known = setmetatable({}, {
    __index = function(keys, name)
      local key = prefix .. name
      keys[name] = key
      return key
    end,
  })
  spaces[prefix] = known
  return known
end

local function reset()
  work = {
    entries = {}, was = {}, changed = {}, -- by sequence number: entries as they are now and were; those that changed
    ids = {}, -- id -> sequence number, for what this call put or brought back
    claims = {}, claims_changed = {}, -- records of claims that were read, and those to be written
    claims_left = {}, -- keys of those that an entry is about to leave
    bodies = {}, -- new ones, by packed number; false: to be removed
    counters = {}, holds = {}, receipts = {}, rows = {}, buried = {}, exhumed = {}, revived = {},
    links = {}, links_changed = {}, waits = {}, waits_changed = {}, -- as they are now, by id; those to be written
    linked = {}, unlinked = {}, -- target and source of links that came and went
    follow = {}, doomed = {}, -- by target: what it needs more or less and has counted; those to be cancelled
    results = {},
    cascaded = {}, -- id, queue and reason of what others' ends have cancelled
    rings = false, -- whether something may have become claimable
    journal = nil, -- of the step that is being tried
  }
  -- By name: records that were read, those to be written, lanes to be looked at, label values that have room again,
  -- and whether entries came back for it.
  queue.known, queue.stale, queue.looks, queue.freed, queue.unparked = {}, {}, {}, {}, {}
  for i = 1, #batch.commands do batch[batch.commands[i]] = {} end
end

-- The first argument of every function is the time, or '' for the server's.
local function look_around(keys, arguments)
  if not call then bind() end
  K = spaces[keys[1]] or space_keys(keys[1])
  ARGS = arguments
  now = tonumber(arguments[1])
  if not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
end

-- The second is the request; then comes what is too large to be packed.
local function begin(keys, arguments)
  look_around(keys, arguments)
  request = decode(arguments[2])
  reset()
end

-- --- reading and writing in batches -----------------------------------------------------------------

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
  local values = {}
  for start = 1, n, batch.most do
    local part = call('HMGET', key, unpack(fields, start, min(start + batch.most - 1, n)))
    for i = 1, #part do values[start + i - 1] = part[i] end
  end
  return values
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

-- Tries something that may fail(): its result, or nil and the problem, with all it changed taken back.
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

-- --- numbers -----------------------------------------------------------------------------------------

-- Sequence numbers are packed into six bytes that sort as the numbers do.
local function packed(number) return spack('>I6', number) end

-- Times before 1970 sort before those after it: the sign is flipped.
local function time8(time)
  if time >= 0 and time < 72057594037927936 then return '\128' .. spack('>I7', time) end
  local text = spack('>i8', time)
  return char((byte(text) + 128) % 256) .. sub(text, 2)
end

local function time_of(text, at)
  local first = byte(text, at)
  if first >= 128 then return (first - 128) * 72057594037927936 + sunpack('>I7', text, at + 1) end
  return (sunpack('>i8', char(first + 128) .. sub(text, at + 1, at + 7)))
end

local function number_of(text) return (sunpack('>I6', text)) end

local function next_number(name)
  local last = work.counters[name] or tonumber(call('HGET', K.counters, name)) or 0
  set(work.counters, name, last + 1)
  return last + 1
end

-- --- replies that are asked for again ------------------------------------------------------------------

-- A call whose reply was lost is sent again with the same number, and gets the reply it would have had.
local reply = { seconds = 900 }

function reply.before()
  if not request['repeat'] or not request.nonce then return nil end
  local text = call('GET', K['reply:'] .. request.nonce)
  return text and decode(text)
end

function reply.remember(result)
  if request.nonce then call('SET', K['reply:'] .. request.nonce, pack(result), 'EX', reply.seconds) end
  return result
end

local function ring()
  if work.rings then call('SPUBLISH', K.bell, '1') end
end
