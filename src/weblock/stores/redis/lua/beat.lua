-- Heartbeats of waiters, any number of them: each keeps its place, or becomes a holder.

local answers, settled = {}, false
for i = 4, #ARGV, 2 do
  if not settled and not field('lease:' .. ARGV[i]) then
    settle()
    settled = true
  end
  answers[#answers + 1] = beat(ARGV[i], tonumber(ARGV[i + 1]))
end
save()
return answers
