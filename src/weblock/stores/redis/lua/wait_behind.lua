-- Gives a lease back for as long as somebody waits who came before its owner, and goes on waiting
-- then. Of those who got some servers each, and none a majority, the first so gets them all.
--
-- One that is late does nothing: the owner may have asked again, and count on what it was told.

local owner, process, label = ARGV[4], ARGV[5], ARGV[6]
local ttl, ticket, seen = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

settle()
local answer, lease = nil, lease_of(owner)
if not lease or recovers then
  answer = beat(owner, ttl)
elseif lease.ends ~= seen then
  answer = held(lease)
else
  queue(owner, { ttl = ttl, ticket = ticket, process = process, label = label, limit = 1 })
  first_waiter() -- Nobody gives way to those who have gone.
  if position_of(owner) == 0 then
    drop_place(owner)
    answer = held(lease)
  else
    drop_lease(lease)
    let_in()
    answer = refused('waiting', 1, position_of(owner))
  end
end
save()
return answer
