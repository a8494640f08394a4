-- Unique ids: who holds them, kept by queue and key as "<end or 0> <id>".

local hold = {}

function hold.scope(queue_name, key) return queue_name .. ':' .. key end

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
  if e.unique then
    local scope = hold.scope(e.queue, e.unique)
    if hold.read(scope) == e.id then set(work.holds, scope, false) end
  end
end

function hold.write()
  for scope, text in pairs(work.holds) do
    local ends = text and tonumber(string.match(text, '^%d+')) or 0
    if text then later('HSET', K.holds, scope, text) else later('HDEL', K.holds, scope) end
    if ends > 0 then later('ZADD', K.periods, ends, scope) else later('ZREM', K.periods, scope) end
  end
  work.holds = {}
end
