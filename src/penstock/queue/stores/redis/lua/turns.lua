-- Turns: which queue a claim takes from next, and when to look again.

local claim -- the one at work
local turns = {
  page = 1000, -- queues looked at together
}

-- Sorts lists that begin with three numbers.
function turns.in_order(found)
  table.sort(found, function(a, b)
    if a[1] ~= b[1] then return a[1] < b[1] end
    if a[2] ~= b[2] then return a[2] < b[2] end
    return a[3] < b[3]
  end)
  return found
end

function turns.read_sources()
  for i, source in ipairs(claim.sources) do
    turns.room[i] = source.limit
    if source.family then
      turns.families[#turns.families + 1] = { at = i, prefix = source.name, size = #source.name }
    else
      turns.named[#turns.named + 1] = source.name
      turns.covered[source.name] = i
    end
  end
  table.sort(turns.families, function(a, b) return a.size > b.size end)
  queue.read_many(turns.named)
end

-- The source that answers for a queue: its own before a family, a longer family before a shorter one; or false.
function turns.source(name)
  local found = turns.covered[name]
  if found == nil then
    found = false
    for _, family in ipairs(turns.families) do
      if sub(name, 1, family.size) == family.prefix then
        found = family.at
        break
      end
    end
    turns.covered[name] = found
  end
  return found
end

-- When this queue's turn is, or nil if it has none by now.
function turns.turn(q)
  local turn
  for _, node in ipairs(turns.nodes) do
    local lane = q.lanes[node]
    local its = lane and (lane.turn or (lane.at and lane.at <= now and max(lane.at, q.served or 0)))
    if its and (not turn or its < turn) then turn = its end
  end
  return turn
end

-- Lanes whose time has come are lined up by turn.
function turns.line_up(node)
  local names = call('ZRANGEBYSCORE', K.opens .. ':' .. node, '-inf', now, 'LIMIT', 0, turns.page)
  for _, name in ipairs(names) do
    if queue.read(name).lanes[node] then
      queue.look(name, node)
    else
      later('ZREM', K.opens .. ':' .. node, name)
    end
  end
  if #names > 0 then flush() end
end

function turns.add_families(found, seen, tried)
  for _, node in ipairs(turns.nodes) do
    local start, more = 0, turns.left
    while more > 0 do
      local page = call('ZRANGE', K.ready .. ':' .. node, start, start + turns.page - 1, 'WITHSCORES')
      for n = 1, #page, 2 do
        local name = page[n]
        local source = not seen[name] and not tried[name] and turns.source(name)
        if source and turns.room[source] > 0 then
          seen[name] = true
          found[#found + 1] = { tonumber(page[n + 1]), #found, 0, name }
          more = more - 1
          if more == 0 then break end
        end
      end
      if #page < 2 * turns.page then break end
      start = start + turns.page
    end
  end
end

-- Queues that have something to give and room to take it, the one that has waited longest first.
function turns.waiting(tried)
  local found, seen = {}, {}
  for _, name in ipairs(turns.named) do
    local turn = not tried[name] and turns.room[turns.covered[name]] > 0 and turns.turn(queue.read(name))
    if turn then found[#found + 1] = { turn, #found, 0, name } end
    seen[name] = true
  end
  if #turns.families > 0 then turns.add_families(found, seen, tried) end
  return turns.in_order(found)
end

-- --- when to look again ------------------------------------------------------------------------------

function turns.first_covered(key)
  local start = 0
  while true do
    local page = call('ZRANGE', key, start, start + turns.page - 1, 'WITHSCORES')
    for n = 1, #page, 2 do
      local source = turns.source(page[n])
      if source and claim.sources[source].limit > 0 then return tonumber(page[n + 1]) end
    end
    if #page < 2 * turns.page then return nil end
    start = start + turns.page
  end
end

function turns.next_time()
  local soonest = math.huge
  for _, node in ipairs(turns.nodes) do
    for _, name in ipairs(turns.named) do
      local lane = claim.sources[turns.covered[name]].limit > 0 and queue.read(name).lanes[node]
      if lane then
        soonest = min(soonest, lane.turn and now or math.huge, lane.at or math.huge, lane.sus or math.huge)
      end
    end
    if #turns.families > 0 and soonest > now then
      for _, key in ipairs({ K.ready, K.opens, K.suspects }) do
        local first = turns.first_covered(key .. ':' .. node)
        if first then soonest = min(soonest, key == K.ready and now or first) end
      end
    end
  end
  return soonest < math.huge and max(soonest, now) or false
end
