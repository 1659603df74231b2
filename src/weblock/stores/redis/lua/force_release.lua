-- Takes the leases away from all holders, and passes the key on.

essential = true
local quarantine = quarantined_until(0)
local lock = read()
local answer = 'gone'
for number = #lock.grants, 1, -1 do
  if lives(lock.grants[number]) then
    answer = 'released'
    free(lock, number)
  end
end
settle(lock, quarantine)
return { answer, now }
