-- A lease that lasts, and is handed to the first waiter: the usual release of a key that is wanted by
-- claims of limit 1.
-- The first write needs no memory, so that the next may: see essential in the prelude. Whatever else
-- there is falls through.

if plain and quiet then
  local first = redis.call('ZPOPMIN', QUEUE)[1]
  if not first then
    return leave(floor - 1)
  end

  local place = redis.call('HGET', LOCK, 'place:' .. first) or ''
  redis.call('HDEL', LOCK, 'place:' .. first)
  local lasts, ttl, ticket, process, label =
    string.match(place, '^(%d+) (%d+) (%d+) [01] (%S*) (.*)$')
  if lasts and now < tonumber(lasts) then
    local length = math.min(tonumber(ttl), HANDOFF)
    fence = math.max(fence + 1, floor, came_at(tonumber(ticket)))
    put_lease(fence, first, process, label, length, false)
    redis.call('PEXPIRE', LOCK, DAY_AND_MINUTE)
    redis.call('PUBLISH', process, string.format(RING, first, fence, now + length))
    return { 'released', now }
  end
end
