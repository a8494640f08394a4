-- Steps: endings, puts and events that happen together or not at all.

local SUBSCRIPTIONS, SUBSCRIBERS = P .. 'subscriptions', P .. 'subscribers'
local full = false -- the server has no room for anything new

local function give_back(e, outcome, its_token, due, delay, err, started)
  local back = due or now + delay
  local new = given_back(e)
  if err then new[ERROR] = err end
  new[SETTLED] = its_token
  if outcome == 'retry' then
    record(e, 'retried', err, started, true, false)
    new[DUE], new[SUSPECT] = back, false
  elseif outcome == 'snooze' then
    new[DUE], new[SUSPECT], new[ATTEMPT] = back, false, e[ATTEMPT] - 1
  else
    -- As if never claimed; so a suspect stays one, nothing has cleared it.
    new[ATTEMPT] = e[ATTEMPT] - 1
  end
  change(e[ID], new)
end

-- An ending: id, token, outcome, start, due, delay, error.
local function apply_ending(ending)
  local e = held(ending[1], ending[2])
  if not e then fail('lost', ending[1]) end
  local outcome = ending[3]
  if outcome == 'done' or outcome == 'dead' then
    finish(e, outcome, ending[7], ending[4], true)
  else
    give_back(e, outcome, ending[2], ending[5], ending[6], ending[7], ending[4])
  end
end

local function check_place(name, priority, node)
  if priority < -100 or priority > 100 then fail('priority', tostring(priority)) end
  if (priority ~= 0 or node) and queue(name).fifo then fail('fifo', name) end
end

-- The fields of a new entry, as the client sends them.
local N = {
  ID = 1, QUEUE = 2, CODEC = 3, TYPE = 4, PRIORITY = 5, DUE = 6, DELAY = 7, LABELS = 8, HEADERS = 9, KEY = 10,
  MODE = 11, CONFLICT = 12, PERIOD = 13, EXPIRES = 14, EXPIRES_IN = 15, NODE = 16, REPEAT = 17,
}

local function expiry(new) return new[N.EXPIRES_IN] and now + new[N.EXPIRES_IN] or new[N.EXPIRES] or false end

-- What a put gives whose unique id is taken: the holder and when it is due; nil when it is free.
local function meet_holder(new, payload, due)
  local name, key = new[N.QUEUE], new[N.KEY]
  local id = holder(scope_of(name, key))
  if not id then return nil end
  if new[N.CONFLICT] == 'raise' then fail('unique', name, key, id) end
  local e = read(id)
  if not e then return { id, now } end -- it has ended, and its period still runs
  if new[N.CONFLICT] == 'replace' then
    if e[NONCE] then fail('unique', name, key, id) end
    local changed_entry = copy(e)
    changed_entry[CODEC], changed_entry[TYPE] = new[N.CODEC], new[N.TYPE]
    changed_entry[LABELS], changed_entry[HEADERS] = new[N.LABELS] or false, new[N.HEADERS] or false
    changed_entry[PRIORITY], changed_entry[DUE], changed_entry[FIRST_DUE] = new[N.PRIORITY], due, due
    changed_entry[EXPIRES], changed_entry[ERROR], changed_entry[SUSPECT] = expiry(new), false, false
    if e[ATTEMPT] > 0 then changed_entry[GENERATION] = e[GENERATION] + 1 end
    changed_entry[ATTEMPT] = 0
    set(payloads, pad(e[SEQ]), payload)
    change(id, changed_entry)
    e = changed_entry
  end
  return { id, e[DUE] }
end

-- Puts an entry: its due time if it is there now under its own id, or the id that stands for it and its due time.
local function put(new, payload, repeated)
  local id, name = new[N.ID], new[N.QUEUE]
  local known = read(id)
  if not known and (repeated or new[N.REPEAT]) then
    local _, ended = last_end(id)
    known = ended
  end
  if known then
    local theirs = payload_of(known)
    if known[QUEUE] ~= name or (theirs and theirs ~= payload) then fail('conflict', id, known[QUEUE]) end
    return known[FIRST_DUE]
  end
  if full then fail('full') end
  check_place(name, new[N.PRIORITY], new[N.NODE])
  local due = (new[N.DUE] or now) + new[N.DELAY]
  if new[N.KEY] then
    local met = meet_holder(new, payload, due)
    if met then return met end
    local ends = new[N.MODE] == 'period' and now + new[N.PERIOD] or 0
    set(holds, scope_of(name, new[N.KEY]), format('%.0f ', ends) .. id)
  end
  local seq = next_number('seq')
  set(payloads, pad(seq), payload)
  change(id, {
    id, name, new[N.NODE] or false, seq, new[N.PRIORITY], now, due, due, expiry(new), 0, 1, 0, false, false,
    new[N.LABELS] or false, new[N.HEADERS] or false, new[N.KEY] or false, new[N.MODE] or false, false,
    new[N.CODEC], new[N.TYPE], false, false, false, false, false,
  })
  return due
end

-- The same parts always give the same id: a name-based UUID, as penstock.ids makes it.
local function derived_id(namespace, name)
  local bytes = string.gsub(namespace, '..', function(digits) return string.char(tonumber(digits, 16)) end)
  local hex = redis.sha1hex(bytes .. name)
  local variant = format('%x', 8 + tonumber(sub(hex, 17, 17), 16) % 4)
  return sub(hex, 1, 8) .. '-' .. sub(hex, 9, 12) .. '-5' .. sub(hex, 14, 16) .. '-' .. variant .. sub(hex, 18, 20)
    .. '-' .. sub(hex, 21, 32)
end

local subscriptions

local function publish(event, payload, namespace, repeated)
  if not subscriptions then
    subscriptions = {}
    local names = call('ZRANGE', SUBSCRIBERS, 0, -1)
    local texts = get_many(SUBSCRIPTIONS, names)
    for i = 1, #names do
      if texts[i] then
        local wants = {}
        local kept = decode(texts[i])
        for _, type_name in ipairs(kept[2]) do wants[type_name] = true end
        subscriptions[#subscriptions + 1] = { name = names[i], queue = kept[1], wants = wants }
      end
    end
  end
  local made, template = {}, event[2]
  local event_id = template[N.ID]
  for _, one in ipairs(subscriptions) do
    for _, type_name in ipairs(event[1]) do
      if one.wants[type_name] then
        local new = {}
        for i = N.ID, N.REPEAT do new[i] = template[i] end
        new[N.ID], new[N.QUEUE] = derived_id(namespace, event_id .. '\031' .. one.name), one.queue
        made[#made + 1] = { new[N.ID], one.queue, put(new, payload, repeated) }
        break
      end
    end
  end
  return made
end

-- A step: whether it is a repeat, endings, puts, events, and where its payloads begin among the arguments.
local function apply_step(step)
  local repeated, endings, first = step[1], step[2], step[5]
  local puts, published = {}, {}
  for i = 1, #endings do apply_ending(endings[i]) end
  for i = 1, #step[3] do puts[i] = put(step[3][i], ARGV[first + i - 1], repeated) end
  first = first + #step[3]
  for i = 1, #step[4] do published[i] = publish(step[4][i], ARGV[first + i - 1], request.namespace, repeated) end
  return { 1, puts, published }
end

-- Whether this lease was settled before: said by the live entry, the last row, or the dead letter.
local function was_settled(id, its_token)
  local e = read(id)
  if e then return e[SETTLED] == its_token end
  local head, ended = last_end(id)
  return head and head[6] and ended[NONCE] and token(ended) == its_token
end

-- What a step gave when it happened already: none of its leases is held, and one is known to be settled.
local function done_before(step)
  local endings = step[2]
  for i = 1, #endings do
    if held(endings[i][1], endings[i][2]) then return nil end
  end
  for i = 1, #endings do
    local id, its_token = endings[i][1], endings[i][2]
    if was_settled(id, its_token) then
      local text = call('HGET', RECEIPTS, endings[1][1])
      local receipt = text and decode(text)
      if receipt and receipt[1] == endings[1][2] then return receipt[2] end
      local puts, published = {}, {}
      for n, new in ipairs(step[3]) do puts[n] = { new[N.ID], now } end
      for n = 1, #step[4] do published[n] = {} end
      return { 1, puts, published }
    end
  end
end

-- A plain success is id, token and start; all else is a whole step. The result, or a list that begins with 0.
local function take_step(step)
  if type(step[1]) == 'string' then
    local e = held(step[1], step[2])
    if not e then return { 0, 'lost', step[1] } end
    finish(e, 'done', nil, step[3], true)
    return 1
  end
  local endings = step[2]
  if step[1] and #endings > 0 then
    local before = done_before(step)
    if before then return before end
  end
  local result, problem = try(apply_step, step)
  if not result then return { 0, unpack(problem) } end
  if #endings > 0 and #step[3] + #step[4] > 0 then
    -- A repeat is answered with what the step gave, whatever has become of its puts since.
    later('HSET', RECEIPTS, endings[1][1], pack({ endings[1][2], result }))
  end
  return result
end

local function read_ahead(steps)
  local ids, news = {}, false
  for i = 1, #steps do
    local step = steps[i]
    if type(step[1]) == 'string' then
      ids[#ids + 1] = step[1]
    else
      for n = 1, #step[2] do ids[#ids + 1] = step[2][n][1] end
      for n = 1, #step[3] do ids[#ids + 1] = step[3][n][N.ID] end
      news = news or #step[3] + #step[4] > 0
    end
  end
  read_many(ids)
  full = news and is_full()
end
