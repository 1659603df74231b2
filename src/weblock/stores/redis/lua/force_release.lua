-- Takes the lease away from its holder, and passes the key on.

essential = true
local quarantine = quarantined_until(0)
local lock = read()
local answer = 'gone'
if lives(lock) then
  answer = 'released'
  free(lock)
end
settle(lock, quarantine)
return { answer, now }
