-- Transfer: takes in what another store held, behind what is here: entries, dead letters, rows, holds of unique ids.
--
-- A piece is a list: part, entry (a map), how it ended (state, started, ended, error, owner) or false, whether it is
-- the row of an entry's end; its payload is an argument, '' where there is none.

local transfer = {}

function transfer.live(e)
  local field = packed(e.seq)
  e.earlier = transfer.earlier(e)
  set(work.ids, e.id, field)
  entry.change(field, e)
end

-- The row of the id that was loaded before.
function transfer.earlier(e)
  local field = entry.field(e.id)
  return field and put.earlier_row(field)
end

function transfer.dead(e, ending)
  local field, earlier = packed(e.seq), transfer.earlier(e)
  if earlier then later('ZADD', K['trail:'] .. e.id, 0, earlier) end
  later('HSET', K.ids, e.id, field)
  later('HSET', K.states, field, 'D' .. packed(0))
  local text = spack('>i8', ending[3]) .. item.text(e) .. pack({ e.node, ending[4] })
  set(work.buried, #work.buried + 1, { e = e, text = text, number = next_number('dead') })
  local q = queue.read(e.queue)
  if q.unknown then queue.stale[e.queue] = true end
end

-- Every row has a body of its own: what it was is all that is known.
function transfer.row(e, ending, is_last)
  local field, key = packed(e.seq), packed(next_number('history'))
  local head = { ending[1], ending[3], false, ending[5], e.queue, ending[4], e.node, false }
  local text = history.text(head, item.text(e), spack('>i8', ending[2] or 0))
  local row = { key = key, text = text, queue = e.queue, labels = e.labels }
  row.last = { field = field, text = 'H' .. key }
  if is_last then
    local earlier = transfer.earlier(e)
    if earlier then later('ZADD', K['trail:'] .. e.id, 0, earlier) end
    later('HSET', K.ids, e.id, field)
  else
    row.trail = e.id
  end
  set(work.rows, #work.rows + 1, row)
end

function transfer.take_in(piece, payload)
  local part, e, ending, is_last = piece[1], piece[2], piece[3], piece[4]
  e.seq = next_number('seq')
  e.body, e.recorded, e.first_priority = e.seq, false, e.priority
  entry.rewrite(e, payload, false)
  if part == 'live' then
    transfer.live(e)
  elseif part == 'dead' then
    transfer.dead(e, ending)
  else
    transfer.row(e, ending, is_last)
    flush() -- the next row of the same id has to see it
  end
end

-- Links of another store: the bodies of their sources are marked, those of dead letters too.
function transfer.link(source, target, kind)
  local list = {}
  local there = link.of(source) or {}
  for i = 1, #there, 2 do
    if there[i] ~= target then list[#list + 1], list[#list + 2] = there[i], there[i + 1] end
  end
  list[#list + 1], list[#list + 2] = target, kind
  link.keep(source, list)
  set(work.linked, #work.linked + 1, { target, source })
  local e = entry.by_id(source)
  local letter = not e and entry.field(source) and call('HGET', K.dead, entry.field(source))
  if letter then
    local _, text, node = history.read_letter(letter)
    e = entry.build(text, node)
  end
  if e then link.mark(e) end
end

local function load_all(keys, arguments)
  begin(keys, arguments)
  local before = reply.before()
  if before then return before end
  if put.full then return reply.remember({ now, { 0, 'full' } }) end
  for i = 1, #request.pieces do transfer.take_in(request.pieces[i], ARGS[2 + i]) end
  for i = 1, #request.holds do
    local name, key, id, ends = unpack(request.holds[i])
    hold.take(hold.scope(name, key), id, ends)
  end
  for _, one in ipairs(request.links or {}) do transfer.link(one[1], one[2], one[3]) end
  for _, one in ipairs(request.waits or {}) do
    work.waits[one[1]], work.waits_changed[one[1]] = { unpack(one, 2, 6) }, true
  end
  for i, one in ipairs(request.results or {}) do
    later('HSET', K.results, one[1], ARGS[2 + #request.pieces + i])
    later('ZADD', K.result_ends, format('%.0f', one[2]), one[1])
    if one[3] then later('ZADD', K['batch_results:'] .. one[3], 0, one[1]) end
  end
  flush()
  ring()
  return reply.remember({ now, { 1 } })
end

-- --- what can be called ------------------------------------------------------------------------------------

-- A function that changes something is there twice: the server does not run the first while its memory is full, and the
-- client then asks for the second, which takes in nothing new.
-- What others' ends have cancelled comes last in a reply, behind a mark.
local function with_cascaded(answer)
  if work.cascaded and #work.cascaded > 0 then
    answer[#answer + 1] = { 'cascaded', work.cascaded }
    work.cascaded = {}
  end
  return answer
end

local function register(name, callback)
  redis.register_function({
    function_name = PREFIX .. name,
    callback = function(keys, arguments)
      put.full = false
      return with_cascaded(callback(keys, arguments))
    end,
  })
  redis.register_function({
    function_name = PREFIX .. name .. '_full',
    callback = function(keys, arguments)
      put.full = true
      return with_cascaded(callback(keys, arguments))
    end,
    flags = { 'allow-oom' },
  })
end

local function register_read(name, callback)
  redis.register_function({ function_name = PREFIX .. name, callback = callback, flags = { 'no-writes' } })
end

register('put', put_plain)
register('settle', settle_all)
register('change', change_all)
register('extend', extend)
register('reap', reap_all)
register('prune', prune_all)
register('purge', purge)
register('manage', manage_all)
register('load', load_all)
register_read('find', find)
register_read('look', look)
