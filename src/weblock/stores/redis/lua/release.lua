-- Takes back whatever the owner has, lease and place, and passes the key on. With void, a request of
-- the same owner that is still under way is refused for so many microseconds. It can run with LOCK alone.

local answer, lease = 'gone', lease_of(owner)
if lease then
  answer = lives(lease) and 'released' or 'gone'
  drop_lease(lease)
end
if ALONE then
  drop('place:' .. owner)
elseif place_of(owner) then
  drop_place(owner)
end
if void > 0 then
  lock.voided[owner] = now + void
  lasts_longer = true
end
changed = true
if not AWAY then
  settle()
end
save()
return { answer, now }
