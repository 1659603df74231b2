-- The usual release: the only lease of a key for which nobody waits.

local owner, void = ARGV[4], tonumber(ARGV[5])

if known and WHERE ~= 'asking' and void == 0 then
  local got = redis.call('HMGET', LOCK, 'count', 'holder', 'fence', 'soonest', 'length', 'run', 'places', 'voided')
  local fence, ends = tonumber(got[3]) or 0, tonumber(got[4]) or 0
  if got[1] == '1' and got[2] == owner and got[6] == RUN and not got[7] and not got[8] and fence <= now
    and now < ends and ends <= now + got[5] then
    redis.call('DEL', LOCK)
    if fence > epoch.fence then
      redis.call('HSET', EPOCH, 'fence', got[3])
    end
    return { 'released', now }
  end
end
