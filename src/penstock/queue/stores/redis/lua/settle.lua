-- Calls one after the other: of each the steps, each by itself, then the claim.

local replies = {}
steps.full = batch.begin()
for i, one in ipairs(request.calls) do
  local todo, wish = one[1], one[2]
  local results = {}
  steps.read_ahead(todo)
  for n = 1, #todo do results[n] = steps.take(todo[n]) end
  if wish then flush() end
  replies[i] = { results, wish and take_claim(wish) or false }
end
flush()
ring()
return { now, replies }
