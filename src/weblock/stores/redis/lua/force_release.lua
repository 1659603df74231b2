-- Takes the lease away from whoever has it, and passes the key on.

despite_full_memory()
local quarantine = quarantined_until(0)
local lock = read(quarantine)
local answer = 'gone'
if lock.owner ~= '' and now < lock.ends then
  answer = 'released'
  lock.owner = ''
end
settle(lock, quarantine)
return { answer, now }
