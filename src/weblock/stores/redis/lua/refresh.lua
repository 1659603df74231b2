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

local answers = {}
for i = 4, #ARGV, 2 do
  answers[#answers + 1] = refresh(lock, quarantine, ARGV[i], tonumber(ARGV[i + 1]))
end
save(lock)
return answers
