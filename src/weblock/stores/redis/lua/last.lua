-- The usual release: the only lease of a key for which nobody waits.

local owner, void = ARGV[4], tonumber(ARGV[5])

if known and WHERE ~= 'asking' and void == 0 and got[3] == owner and got[2] == '1' and got[8] == RUN
  and not got[11] and now < tonumber(got[6]) and tonumber(got[1]) <= now then
  if got[10] then -- Owners that gave up are remembered for as long as they may still ask.
    redis.call('HDEL', LOCK, mine, 'count', 'holder', 'limit', 'mixed', 'soonest', 'length', 'asked')
    return { 'released', now }
  end
  redis.call('DEL', LOCK)
  if tonumber(got[1]) > (tonumber(told[7]) or 0) then
    redis.call('HSET', EPOCH, 'fence', got[1])
  end
  return { 'released', now }
end
