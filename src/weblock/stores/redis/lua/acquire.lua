-- Grants the key if the claim fits, else queues the claim if fewer than room wait. Asking again is
-- harmless: an owner that has a lease keeps it, with its fence; one in the queue keeps its place.

local claim = { ttl = length, ticket = ticket, limit = limit, process = process, label = label }
settle()
if lock.voided[owner] then
  save()
  return { 'gone', now }
end

local answer = beat(owner, claim.ttl)
if answer[1] == 'gone' then
  if grants and fits(claim.limit) and not first_waiter() then
    answer = held(grant(owner, claim, claim.ttl, true))
  else
    waiters = waiters or redis.call('ZCARD', QUEUE)
    if room > 0 and waiters >= room then
      -- Which of them is a matter of the microsecond, so that all are seen in time.
      local first = now % math.max(1, waiters - SEEN + 1)
      drop_places(first, first + SEEN - 1, function(place) return now >= place.ends end)
      waiters = redis.call('ZCARD', QUEUE)
    end
    if waiters >= room then
      answer = refused('busy', claim.limit, waiters)
    else
      queue(owner, claim)
      answer = refused('waiting', claim.limit, claim.ticket > 0 and position_of(owner) or waiters)
    end
  end
end
save()
return answer
