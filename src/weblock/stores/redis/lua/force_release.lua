-- Takes the lease away from whoever has it, and passes the key on.

local quarantine = quarantined_until(0)
local lock = read()
local answer = 'gone'
if lock.owner ~= '' then
  if now < lock.ends then
    answer = 'released'
  end
  lock.owner = ''
end
settle(lock, quarantine)
return { answer, now }
