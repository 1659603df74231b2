-- Gives a lease back for as long as somebody waits who came before its owner, and goes on waiting
-- then. Of those who got some servers each, and none a majority, the first so gets them all.
--
-- One that is late does nothing: the owner may have asked again, and count on what it was told.

local owner, process, label = ARGV[4], ARGV[5], ARGV[6]
local ttl, ticket, seen = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

local quarantine = quarantined_until(ttl)
local lock = read()
settle(lock, quarantine)
local lease, number = lease_of(lock, owner)
if not lease then
  return refresh(lock, quarantine, owner, ttl)
end
if lease.ends ~= seen then
  return held(lease)
end

queue(lock, owner, { ttl = ttl, ticket = ticket, process = process, label = label, limit = 1 })
first_waiter() -- Nobody gives way to those who have gone.
if position_of(owner) == 0 then
  drop_place(owner)
  return held(lease)
end
table.remove(lock.grants, number)
let_in(lock)
return waiting(lock, quarantine, position_of(owner), 1)
