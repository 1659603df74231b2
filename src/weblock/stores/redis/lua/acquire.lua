-- Grants the key if it is free, else queues the claim if fewer than room wait. Asking again is
-- harmless: who has the lease keeps it, with its fence; who is in the queue keeps its place.

local VOIDED = KEYS[4]
local owner, process, label = ARGV[4], ARGV[5], ARGV[6]
local ttl, room, ticket = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

local quarantine = quarantined_until(ttl)
local lock = read(quarantine)
settle(lock, quarantine)

if redis.call('EXISTS', VOIDED) == 1 then
  return { 'gone', now }
end

if lock.owner == '' and now >= quarantine then -- And nobody waits.
  grant(lock, owner, ticket, process, label, ttl, true)
  return held(lock)
end

-- Of several servers, one may have forgotten that this lease was given back: it counts as a vote
-- again when nobody can have been told of another.
if ticket > 0 and now < quarantine and holds(lock, owner) then
  free(lock)
end

local known = refresh(lock, quarantine, owner, ttl)
if known[1] ~= 'gone' then
  return known
end

if redis.call('ZCARD', QUEUE) >= room then
  drop_places(function(place) return now >= place.ends end)
  local waiters = redis.call('ZCARD', QUEUE)
  if waiters >= room then
    return { 'busy', now, busy_until(lock, quarantine), waiters }
  end
end

queue(lock, owner, { ttl = ttl, ticket = ticket, process = process, label = label })
return waiting(lock, quarantine, position_of(owner))
