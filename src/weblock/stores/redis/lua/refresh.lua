-- Heartbeats, of any number of owners: each renews its lease or keeps its place. None shortens a
-- lease, and none brings back one that has ended.

local longest = 0
for i = 5, #ARGV, 2 do
  longest = math.max(longest, tonumber(ARGV[i]))
end

essential = true
local quarantine = quarantined_until(longest)
local lock = read()
settle(lock, quarantine)

local answers, renewed = {}, 0
for i = 4, #ARGV, 2 do
  local ttl = tonumber(ARGV[i + 1])
  local answer = refresh(lock, quarantine, ARGV[i], ttl)
  if answer[1] == 'held' and answer[4] == now + ttl then
    renewed = math.max(renewed, ttl)
  end
  answers[#answers + 1] = answer
end
save(lock)
if lock.written == ALL and renewed > 0 then -- The next renewals of many need not take all apart: see renew.
  vouch(renewed)
end
return answers
