-- Gives a lease back for as long as somebody waits who came before its owner, and goes on waiting
-- then. Of those who got some servers each, and none a majority, the first so gets them all.

local owner, process, label = ARGV[4], ARGV[5], ARGV[6]
local ttl, ticket = tonumber(ARGV[7]), tonumber(ARGV[8])

local quarantine = quarantined_until(ttl)
local lock = read()
settle(lock, quarantine)
if lock.owner ~= owner then
  return refresh(lock, quarantine, owner, ttl)
end

drop_places(function(place) return now >= place.ends end)
local first = redis.call('ZRANGE', QUEUE, 0, 0)[1]
if not first or ticket <= place_of(first).ticket then
  return held(lock)
end
queue(lock, owner, { ttl = ttl, ticket = ticket, process = process, label = label })
pass_on(lock)
return waiting(lock, quarantine, position_of(owner))
