-- A call whose reply was lost is sent again with the same number, and gets the reply it would have had.

local REPLY = K.reply .. ':' .. ARGV[3]
local REMEMBERED = 900 -- seconds

if ARGV[3] ~= '' and request['repeat'] then
  local reply = call('GET', REPLY)
  if reply then return decode(reply) end
end

local function remember(reply)
  if ARGV[3] ~= '' then call('SET', REPLY, pack(reply), 'EX', REMEMBERED) end
  return reply
end
