-- Grants the key if the claim fits, else queues the claim if fewer than room wait. Asking again is
-- harmless: who has a lease keeps it, with its fence; who is in the queue keeps its place.

local limit = tonumber(ARGV[10] or '1')
local claim = { ttl = ttl, ticket = ticket, process = process, label = label, limit = limit }
local quarantine = quarantined_until(ttl)
local lock = read()
settle(lock, quarantine)

if redis.call('EXISTS', VOIDED) == 1 then
  return { 'gone', now }
end

local function granted()
  local lease = grant(lock, owner, claim, ttl, true)
  save(lock)
  vouch(ttl)
  return held(lease)
end

if #lock.grants == 0 and now >= quarantine then -- And nobody waits who may have it.
  return granted()
end

-- Of several servers, one may have forgotten that this lease was given back: it counts as a vote
-- again when nobody can have been told of another.
local lease, number = lease_of(lock, owner)
if lease and ticket > 0 and now < quarantine then
  free(lock, number)
  put_down(lock)
end

local known = refresh(lock, quarantine, owner, ttl)
if known[1] ~= 'gone' then
  save(lock)
  return known
end

if now >= quarantine and fits(lock, limit) and not first_waiter() then
  return granted()
end

local waiters = redis.call('ZCARD', QUEUE)
if room > 0 and waiters >= room then
  -- Which of them is a matter of the microsecond, so that all are seen in time.
  local first = now % math.max(1, waiters - SEEN + 1)
  drop_places(first, first + SEEN - 1, function(place) return now >= place.ends end)
  waiters = redis.call('ZCARD', QUEUE)
end
if waiters >= room then
  local because = recovering(lock, quarantine, limit)
  return { 'busy', now, busy_until(lock, quarantine), waiters, because, holder(lock) }
end

if not quiet then -- Else that holds for longer leases, too.
  vouch(HANDOFF)
end
queue(lock, owner, claim)
return waiting(lock, quarantine, position_of(owner), limit)
