-- A lease that lasts, of a key that nobody waits for: the usual release. Since nothing is granted, it
-- does not matter how long ago the server was looked at, and only that it was this run: if the keys
-- have come here from elsewhere, this caller may be the one who knows how the clocks differ. Whatever
-- else there is falls through.

local VOIDED = KEYS[4]
local owner, void = ARGV[4], tonumber(ARGV[5])

local got = redis.call('HMGET', LOCK, 'owner', 'fence', 'since', 'until', 'places', 'limits')
local fence, ends = tonumber(got[2]) or 0, tonumber(got[4]) or 0
-- Longer leases may have been noted one by one, and have that taken away.
local plain = void == 0 and got[1] == owner and now < ends and ends - got[3] <= MINUTE and fence <= now
  and not got[6]

-- Leaves nothing of the key but its fence, together with those of all others.
local function leave(noted)
  redis.call('DEL', LOCK)
  if fence > noted then
    redis.call('HSET', EPOCH, 'fence', got[2])
  end
  return { 'released', now }
end

-- Whoever waits has had a place since there is this hash.
if plain and not got[5] then
  local told = redis.call('HMGET', EPOCH, 'fence', 'quiet_run')
  if told[2] == RUN then
    return leave(tonumber(told[1]) or 0)
  end
end
