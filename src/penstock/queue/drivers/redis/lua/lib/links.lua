-- Links: who waits for whom, and results. The rules are those of penstock/queue/linking.py.
--
-- `links` has by the id of a source a packed list: target, kind, target, kind...; `linked:<target>` its sources. `waits` has
-- by the id of a target a packed list: needs, done, dead, cancelled, expired. A held entry is due at HELD, which never
-- comes. What a step means for targets is collected in work.follow, and done when the call writes.

local HELD = 288230376151711744
local link = { counted = { done = 2, dead = 3, cancelled = 4, expired = 5, purged = 4 } }

function link.of(source)
  local list = work.links[source]
  if list == nil then
    local text = call('HGET', K.links, source)
    list = text and decode(text) or false
    work.links[source] = list
  end
  return list
end

-- Reads the links of many at once.
function link.read(sources)
  for i, text in ipairs(batch.get(K.links, sources)) do
    local source = sources[i]
    if work.links[source] == nil then work.links[source] = text and decode(text) or false end
  end
end

function link.wait(target)
  local wait = work.waits[target]
  if wait == nil then
    local text = call('HGET', K.waits, target)
    wait = text and decode(text) or false
    work.waits[target] = wait
  end
  return wait
end

function link.is_held(e) return e and not e.claim and e.due == HELD end

-- --- ends ----------------------------------------------------------------------------------------------

function link.change(target, needs, state, count)
  local old = work.follow[target] or { 0, 0, 0, 0, 0 }
  local new = { old[1] + needs, old[2], old[3], old[4], old[5] }
  local at = link.counted[state]
  if at then new[at] = new[at] + (count or 1) end
  set(work.follow, target, new)
end

function link.is_fatal(kind, state)
  if kind == 'open' then return state == 'expired' end
  return kind == 'done' and (state == 'cancelled' or state == 'expired' or state == 'purged')
end

function link.reason(kind, id, state)
  if kind == 'open' then return 'cancelled because its batch was not complete when ' .. id .. ' expired' end
  return 'cancelled because ' .. id .. (state == 'expired' and ' expired' or ' was ' .. state)
end

-- Consumes the links of an entry that ended.
function link.ended(id, state)
  local list = link.of(id)
  if not list then return end
  local left = {}
  for i = 1, #list, 2 do
    local target, kind = list[i], list[i + 1]
    if state == 'dead' and kind ~= 'ended' then
      left[#left + 1], left[#left + 2] = target, kind
    else
      link.change(target, -1, kind ~= 'open' and state)
      if link.is_fatal(kind, state) and not work.doomed[target] then
        set(work.doomed, target, link.reason(kind, id, state))
      end
      set(work.unlinked, #work.unlinked + 1, { target, id })
    end
  end
  link.keep(id, #left > 0 and left or false)
end

-- The same for many that are done: all their links are consumed, and none is fatal.
function link.all_done(ids)
  link.read(ids)
  local sources, done = {}, {}
  for _, id in ipairs(ids) do
    local list = work.links[id]
    for i = 1, list and #list or 0, 2 do
      local target = list[i]
      local its = sources[target]
      if not its then
        its = {}
        sources[target], done[target] = its, 0
      end
      its[#its + 1] = id
      if list[i + 1] ~= 'open' then done[target] = done[target] + 1 end
    end
    if list then link.keep(id, false) end
  end
  for target, its in pairs(sources) do
    link.change(target, -#its, 'done', done[target])
    for _, id in ipairs(its) do later('ZREM', K['linked:'] .. target, id) end
  end
end

function link.keep(source, list)
  set(work.links, source, list)
  set(work.links_changed, source, true)
end

-- The net change of each target; then what needs nothing any more is released, and what never can be is cancelled.
function link.finish()
  while next(work.follow) do
    local follow, doomed = work.follow, work.doomed
    work.follow, work.doomed = {}, {}
    for target, change in pairs(follow) do
      local wait, sum = link.wait(target) or { 0, 0, 0, 0, 0 }, {}
      for i = 1, 5 do sum[i] = wait[i] + change[i] end
      work.waits[target], work.waits_changed[target] = sum, true
      local e = entry.by_id(target)
      if sum[1] == 0 and not entry.field(target) then work.waits[target] = false end
      if link.is_held(e) then
        if doomed[target] then
          history.finish(e, 'cancelled', doomed[target])
          for _, word in ipairs({ e.id, e.queue, doomed[target] }) do work.cascaded[#work.cascaded + 1] = word end
        elseif sum[1] == 0 then
          local new = entry.copy(e)
          new.due = max(e.first_due, now)
          entry.change(packed(e.seq), new)
        end
      end
    end
  end
end

-- What a forgotten entry needed is forgotten, unless entries still have links to it.
function link.forget(id)
  local wait = link.wait(id)
  if wait and wait[1] == 0 then later('HDEL', K.waits, id) end
end

-- --- new links -----------------------------------------------------------------------------------------

-- Marks the body of an entry, so that its end looks for links.
function link.mark(e)
  if e.linked then return end
  set(e, 'linked', true)
  entry.rewrite(e, body.payload(e), false)
  if e.claim and e.claim.kind then
    set(e.claim, 'kind', false)
    set(work.claims_changed, e.claim.key, e.claim)
  end
end

-- Marks a source that was there before: 'live', how it ended, or nil if nobody knows it.
function link.source_state(id)
  local field = entry.field(id)
  local e = field and entry.read(field)
  if e then
    link.mark(e)
    return 'live'
  end
  local record, _, state = nil, nil, nil
  if field then record, _, state = history.last(field) end
  if state and sub(state, 1, 1) == 'D' then return 'dead' end
  return record and record.state
end

-- Whether one of the sources is reached from one of the targets, over links that are there.
function link.check_cycles(links, fresh)
  local sources, reached, any = {}, {}, false
  for _, one in ipairs(links) do
    if not fresh[one[1]] then
      sources[one[1]] = true
      any = true
    end
    if not fresh[one[2]] then reached[#reached + 1] = one[2] end
  end
  local seen = {}
  while any and #reached > 0 do
    local target = table.remove(reached)
    if sources[target] then fail('cycle', target) end
    if not seen[target] then
      seen[target] = true
      local list = link.of(target) or {}
      for i = 1, #list, 2 do reached[#reached + 1] = list[i] end
    end
  end
end

-- Whether a source lives and its target is held.
function link.is_open(source, target)
  local field = entry.field(source)
  return field and entry.read(field) and link.is_held(entry.by_id(target))
end

-- The links of a source to be added to, and its targets; the same for all links of a step.
function link.opened(sources, source)
  if not sources[source] then
    local list, targets = {}, {}
    for i, word in ipairs(link.of(source) or {}) do
      list[i] = word
      if i % 2 == 1 then targets[word] = true end
    end
    sources[source] = { list = list, targets = targets }
  end
  return sources[source]
end

-- Those of the links of a step that are to be made, with the ids that stand for what was put, and which are fresh.
function link.wanted(links, news, puts, known)
  local stands, fresh, wanted = {}, {}, {}
  for i, new in ipairs(news) do
    local id = new[1]
    stands[id] = type(puts[i]) == 'table' and puts[i][1] or id
    fresh[id] = type(puts[i]) ~= 'table' and not known[id]
  end
  local seen = {}
  for _, one in ipairs(links) do
    local source, target = stands[one[1]] or one[1], one[2]
    if stands[target] and stands[target] ~= target then fail('unheld', stands[target]) end
    -- What a put that is repeated made the first time may be consumed since.
    local repeated = known[source] and not fresh[target] and not link.is_open(source, target)
    local of_target = seen[target] or {}
    if not repeated and not of_target[source] then wanted[#wanted + 1] = { source, target, one[3] } end
    of_target[source], seen[target] = true, of_target
  end
  return wanted, fresh
end

function link.make(links, news, puts, known)
  local wanted, fresh = link.wanted(links, news, puts, known)
  link.check_cycles(wanted, fresh)
  local sources = {}
  for _, one in ipairs(wanted) do
    local source, target, kind = one[1], one[2], one[3]
    if not fresh[target] and not link.is_held(entry.by_id(target)) then fail('unheld', target) end
    local state = fresh[source] and 'live' or link.source_state(source)
    if not state then fail('unsourced', source) end
    local opened = state == 'live' and link.opened(sources, source)
    if opened and opened.targets[target] then
      -- it waits for that one already
    elseif opened then
      local list = opened.list
      list[#list + 1], list[#list + 2] = target, kind
      opened.targets[target] = true
      set(work.linked, #work.linked + 1, { target, source })
      link.change(target, 1, false)
    elseif state == 'done' or kind == 'ended' then
      link.change(target, 0, state)
    else
      fail('never', source, state)
    end
  end
  for source, opened in pairs(sources) do link.keep(source, opened.list) end
end

-- --- writing -------------------------------------------------------------------------------------------

function link.write()
  for source in pairs(work.links_changed) do
    local list = work.links[source]
    if list then later('HSET', K.links, source, pack(list)) else later('HDEL', K.links, source) end
  end
  for target in pairs(work.waits_changed) do
    local wait = work.waits[target]
    if wait then later('HSET', K.waits, target, pack(wait)) else later('HDEL', K.waits, target) end
  end
  for _, one in ipairs(work.unlinked) do later('ZREM', K['linked:'] .. one[1], one[2]) end
  for _, one in ipairs(work.linked) do later('ZADD', K['linked:'] .. one[1], 0, one[2]) end
  work.links_changed, work.waits_changed, work.linked, work.unlinked = {}, {}, {}, {}
end

-- --- results -------------------------------------------------------------------------------------------

local outcome = {}

-- What comes before the value of a result; `group` is its batch or false.
function outcome.head(generation, codec, ends, name, group)
  local meta = pack({ generation, codec, ends, name, group })
  return spack('>I4', #meta) .. meta
end

-- Id, generation, codec, for how long, which argument is the value, queue, and batch or false.
function outcome.keep(result)
  local id, generation, codec, lasting, at, name, group = unpack(result, 1, 7)
  local ends = now + lasting
  set(work.results, id, { ends, outcome.head(generation, codec, ends, name, group) .. ARGS[at], group })
end

-- Results that differ in nothing but their values: generation, codec, for how long, queue, batch or false, which argument
-- has their packed sizes, with the values in the one after it, places and ids of the entries. `ended` says by place
-- which of them have ended; all if it is nil.
function outcome.keep_alike(alike, ended)
  local generation, codec, lasting, name, group, at, places, ids = unpack(alike, 1, 8)
  local ends = now + lasting
  local head, sizes, values, from = outcome.head(generation, codec, ends, name, group), ARGS[at], ARGS[at + 1], 1
  for i, id in ipairs(ids) do
    local size = sunpack('>I4', sizes, 4 * i - 3)
    if not ended or ended[places[i]] == 1 then
      set(work.results, id, { ends, head .. sub(values, from, from + size - 1), group })
    end
    from = from + size
  end
end

function outcome.write()
  for id, kept in pairs(work.results) do
    later('HSET', K.results, id, kept[2])
    later('ZADD', K.result_ends, format('%.0f', kept[1]), id)
    if kept[3] then later('ZADD', K['batch_results:'] .. kept[3], 0, id) end
  end
  work.results = {}
end

function outcome.leave_batches(ids)
  for i = 1, #ids do
    local text = call('HGET', K.results, ids[i])
    local group = text and decode(sub(text, 5, 4 + sunpack('>I4', text)))[5]
    if group then later('ZREM', K['batch_results:'] .. group, ids[i]) end
  end
end

function outcome.forget(ids)
  outcome.leave_batches(ids)
  batch.run('HDEL', K.results, ids)
  batch.run('ZREM', K.result_ends, ids)
end

function outcome.sweep(most)
  local old = call('ZRANGEBYSCORE', K.result_ends, '-inf', now, 'LIMIT', 0, most)
  if #old > 0 then outcome.forget(old) end
end
