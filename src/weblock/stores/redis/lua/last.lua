-- The usual release: the only lease of a key for which nobody waits, or somebody who excludes others.

local owner, void = ARGV[4], tonumber(ARGV[5])

if usual and void == 0 and holder == owner and count == 1 and now < soonest then
  local heir = places > 0 and redis.call('ZRANGE', QUEUE, 0, 0)[1]
  if heir and least == 1 then
    local place = redis.call('HGET', LOCK, 'place:' .. heir)
    if place then
      local ends, ttl, ticket, limit, process, label = cmsgpack.unpack(place)
      if limit == 1 and now < ends then
        redis.call('ZREM', QUEUE, heir)
        redis.call('HDEL', LOCK, 'lease:' .. owner, 'place:' .. heir)
        local number, until_then = grant_alone(heir, limit, ticket, math.min(ttl, HANDOFF), false, process, label)
        redis.call('PUBLISH', process, string.format(RING, heir, number, until_then))
        return { 'released', now }
      end
    end
  elseif not heir and fence <= now then
    redis.call('DEL', LOCK)
    if fence > free_fence then
      redis.call('HSET', EPOCH, 'fence', fence)
    end
    return { 'released', now }
  end
end
