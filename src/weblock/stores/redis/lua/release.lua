-- Takes back whatever the owner has, lease or place, and passes the key on. With void, a request
-- of the same owner that is still under way is refused for so many microseconds.

essential = true
local quarantine = quarantined_until(0)
local lock = read()
local answer = 'gone'
local lease, number = lease_of(lock, owner)
if lease then
  if lives(lease) then
    answer = 'released'
  end
  free(lock, number)
else
  drop_place(owner)
  lock.written = owner -- If it was the last who waited for a key that nobody has, nothing is left.
end
if void > 0 then
  write('SET', VOIDED, '1', 'PX', text(math.ceil(void / 1000)))
end
settle(lock, quarantine)
return { answer, now }
