-- Grants the key if it is free, else queues the claim if fewer than room wait. Asking again is
-- harmless: who has the lease keeps it, with its fence; who is in the queue keeps its place.

local quarantine = quarantined_until(ttl)
local lock = read()
settle(lock, quarantine)

if redis.call('EXISTS', VOIDED) == 1 then
  return { 'gone', now }
end

if lock.owner == '' and now >= quarantine then -- And nobody waits who may have it.
  grant(lock, owner, ticket, process, label, ttl, true)
  vouch(ttl)
  return held(lock)
end

-- Of several servers, one may have forgotten that this lease was given back: it counts as a vote
-- again when nobody can have been told of another.
if ticket > 0 and now < quarantine and holds(lock, owner) then
  put_down(lock)
end

local known = refresh(lock, quarantine, owner, ttl)
if known[1] ~= 'gone' then
  return known
end

local waiters = redis.call('ZCARD', QUEUE)
if room > 0 and waiters >= room then
  -- Which of them is a matter of the microsecond, so that all are seen in time.
  local first = now % math.max(1, waiters - SEEN + 1)
  drop_places(first, first + SEEN - 1, function(place) return now >= place.ends end)
  waiters = redis.call('ZCARD', QUEUE)
end
if waiters >= room then
  local because = recovering(lock, quarantine)
  return { 'busy', now, busy_until(lock, quarantine), waiters, because, holder(lock) }
end

vouch(HANDOFF)
queue(lock, owner, { ttl = ttl, ticket = ticket, process = process, label = label })
return waiting(lock, quarantine, position_of(owner))
