-- Heartbeats of waiters, any number of them: each keeps its place, or becomes a holder.

local answers, settled = {}, false
for i = 4, #ARGV, 2 do
  local lease = lease_of(ARGV[i])
  if not settled and not (lease and lives(lease)) then
    settle()
    settled = true
  end
  answers[#answers + 1] = beat(ARGV[i], tonumber(ARGV[i + 1]))
end
save()
return answers
