-- Each step by itself, then the claim.

local results = {}
steps.read_ahead(request.steps)
steps.full = batch.begin()
for i = 1, #request.steps do results[i] = steps.take(request.steps[i]) end
flush()
local claimed = request.claim and take_claim(request.claim) or false
ring()
return { now, results, claimed }
