-- The usual release: the only lease of a key for which nobody waits, or somebody who excludes others.

local owner, void = ARGV[4], tonumber(ARGV[5])

if usual and void == 0 and holder == owner and count == '1' and now < tonumber(soonest) then
  local heir = got[2] and redis.call('ZRANGE', QUEUE, 0, 0)[1]
  if heir and least == '1' then
    local place = redis.call('HGET', LOCK, 'place:' .. heir) or ''
    local ends, ttl, ticket, limit, process, label = string.match(place, '^(%d+) (%d+) (%d+) (%d+) (%S*) (.*)$')
    if ends and limit == '1' and now < tonumber(ends) then
      redis.call('ZREM', QUEUE, heir)
      redis.call('HDEL', LOCK, mine, 'place:' .. heir)
      local _, _, number, until_then =
        grant_alone(heir, limit, tonumber(ticket), math.min(tonumber(ttl), HANDOFF), '0', process, label)
      redis.call('PUBLISH', process, heir .. ' ' .. number .. ' ' .. until_then)
      return { 'released', now }
    end
  elseif not heir and tonumber(fence) <= now then
    redis.call('DEL', LOCK)
    if tonumber(fence) > (tonumber(told[7]) or 0) then
      redis.call('HSET', EPOCH, 'fence', fence)
    end
    return { 'released', now }
  end
end
