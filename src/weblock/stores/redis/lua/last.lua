-- The usual release: the only lease of a key for which nobody waits, or somebody who excludes others.

local owner, void = ARGV[4], tonumber(ARGV[5])

if usual and void == 0 and got[3] == owner and got[2] == '1' and now < tonumber(got[6]) then
  local heir = got[11] and redis.call('ZRANGE', QUEUE, 0, 0)[1]
  if heir and got[4] == '1' then
    local place = redis.call('HGET', LOCK, 'place:' .. heir) or ''
    local ends, ttl, ticket, limit, process, label = string.match(place, '^(%d+) (%d+) (%d+) (%d+) (%S*) (.*)$')
    if ends and limit == '1' and now < tonumber(ends) then
      redis.call('ZREM', QUEUE, heir)
      redis.call('HDEL', LOCK, mine, 'place:' .. heir)
      local length = text(math.min(tonumber(ttl), HANDOFF))
      local fence, until_then = grant_alone(heir, limit, tonumber(ticket), length, '0', process, label)
      redis.call('PUBLISH', process, string.format(RING, heir, fence, until_then))
      return { 'released', now }
    end
  elseif not heir and tonumber(got[1]) <= now then
    redis.call('DEL', LOCK)
    if tonumber(got[1]) > (tonumber(told[7]) or 0) then
      redis.call('HSET', EPOCH, 'fence', got[1])
    end
    return { 'released', now }
  end
end
