-- Serving: which queue a claim takes from next, and when to look again.

local claim -- the request at work
local claiming = {
  page = 1000, first_page = 32, -- queues looked at together; mostly the first few are enough
  patience = 2000, -- so many a claim ends or parks before it leaves the rest to the next one
}

-- Sorts lists that begin with three numbers.
local function in_order(lists)
  table.sort(lists, function(a, b)
    if a[1] ~= b[1] then return a[1] < b[1] end
    if a[2] ~= b[2] then return a[2] < b[2] end
    return a[3] < b[3]
  end)
  return lists
end

function claiming.read_sources()
  for i, source in ipairs(claim.sources) do
    claiming.room[i] = source[2]
    if source[4] then
      claiming.families[#claiming.families + 1] = { at = i, prefix = source[1], size = #source[1] }
    else
      claiming.named[#claiming.named + 1] = source[1]
      claiming.covered[source[1]] = i
    end
  end
  table.sort(claiming.families, function(a, b) return a.size > b.size end)
  queue.read_many(claiming.named)
end

-- The source that answers for a queue: its own before a family, a longer family before a shorter one; or false.
function claiming.source(name)
  local source = claiming.covered[name]
  if source == nil then
    source = false
    for _, family in ipairs(claiming.families) do
      if sub(name, 1, family.size) == family.prefix then
        source = family.at
        break
      end
    end
    claiming.covered[name] = source
  end
  return source
end

-- --- which queue is next ---------------------------------------------------------------------------------

-- Since when this queue waits to be served, or nil if it has nothing by now.
function claiming.waits_since(q)
  local since
  for _, node in ipairs(claiming.nodes) do
    local lane = q.lanes[node]
    local its = lane and (lane.serving or (lane.opens and lane.opens <= now and max(lane.opens, q.served or 0)))
    if its and (not since or its < since) then since = its end
  end
  return since
end

-- Lanes whose time has come are to be served.
function claiming.open_lanes(node)
  local names = call('ZRANGEBYSCORE', K['opening:'] .. node, '-inf', now, 'LIMIT', 0, claiming.page)
  for _, name in ipairs(names) do
    if queue.read(name).lanes[node] then
      queue.look(name, node)
    else
      later('ZREM', K['opening:'] .. node, name)
    end
  end
  if #names > 0 then flush() end
end

function claiming.add_families(waiting, seen, tried)
  for _, node in ipairs(claiming.nodes) do
    local start, more, size = 0, claiming.left, max(claiming.first_page, claiming.left)
    while more > 0 do
      local page = call('ZRANGE', K['serving:'] .. node, start, start + size - 1, 'WITHSCORES')
      for n = 1, #page, 2 do
        local name = page[n]
        local source = not seen[name] and not tried[name] and claiming.source(name)
        if source and claiming.room[source] > 0 then
          seen[name] = true
          waiting[#waiting + 1] = { tonumber(page[n + 1]), #waiting, 0, name }
          more = more - 1
          if more == 0 then break end
        end
      end
      if #page < 2 * size then break end
      start, size = start + size, claiming.page
    end
  end
end

-- Queues that have something to give and room to take it, the one that has waited longest first.
function claiming.waiting(tried)
  local waiting, seen = {}, {}
  for _, name in ipairs(claiming.named) do
    local has_room = not tried[name] and claiming.room[claiming.covered[name]] > 0
    local since = has_room and claiming.waits_since(queue.read(name))
    if since then waiting[#waiting + 1] = { since, #waiting, 0, name } end
    seen[name] = true
  end
  if #claiming.families > 0 then claiming.add_families(waiting, seen, tried) end
  return in_order(waiting)
end

-- The moment a queue was served; no two are the same, so that queues alternate also within a microsecond.
function claiming.served(name, q, starts)
  claiming.tick = max(now, (claiming.tick or tonumber(call('HGET', K.counters, 'served')) or 0) + 1)
  q.served = claiming.tick
  queue.stale[name] = true
  rate.spend(name, q, starts)
end

-- --- when to look again ------------------------------------------------------------------------------

function claiming.first_covered(key)
  local start, size = 0, claiming.first_page
  while true do
    local page = call('ZRANGE', key, start, start + size - 1, 'WITHSCORES')
    for n = 1, #page, 2 do
      local source = claiming.source(page[n])
      if source and claim.sources[source][2] > 0 then return tonumber(page[n + 1]) end
    end
    if #page < 2 * size then return nil end
    start, size = start + size, claiming.page
  end
end

function claiming.next_time()
  local soonest = math.huge
  for _, node in ipairs(claiming.nodes) do
    for _, name in ipairs(claiming.named) do
      local lane = claim.sources[claiming.covered[name]][2] > 0 and queue.read(name).lanes[node]
      if lane then
        soonest = min(
          soonest, lane.serving and now or math.huge, lane.opens or math.huge, lane.suspect or math.huge
        )
      end
    end
    if #claiming.families > 0 and soonest > now then
      for _, key in ipairs({ K['serving:'], K['opening:'], K['suspected:'] }) do
        local first = claiming.first_covered(key .. node)
        if first then soonest = min(soonest, key == K['serving:'] and now or first) end
      end
    end
  end
  return soonest < math.huge and max(soonest, now) or false
end
