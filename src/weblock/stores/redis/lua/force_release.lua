-- Takes the leases away from all holders, and passes the key on.

local answer = 'gone'
for _, lease in ipairs(all_leases()) do
  if lives(lease) then
    answer = 'released'
    drop('lease:' .. lease.owner)
    lock.count = lock.count - 1
  end
end
lock.holder = ''
add_up(lock.count > 0 and all_leases() or {})
settle()
save()
return { answer, now }
