-- Counts the texts of a group, and returns in how many milliseconds the first of them ends, too. GROUP is a
-- sorted set: the keys, by when the text of each ends. First, those that have ended are removed, and a key
-- that is given is added for so many milliseconds, or removed for 0.

local GROUP, key, keep = KEYS[1], ARGV[4], tonumber(ARGV[5])

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZREMRANGEBYSCORE', GROUP, '-inf', now)
if keep == 0 then
  redis.call('ZREM', GROUP, key)
elseif keep then
  redis.call('ZADD', GROUP, now + keep, key)
  local last = redis.call('ZRANGE', GROUP, -1, -1, 'WITHSCORES')
  redis.call('PEXPIRE', GROUP, last[2] - now)
end
local first = redis.call('ZRANGE', GROUP, 0, 0, 'WITHSCORES')
return { redis.call('ZCARD', GROUP), first[2] and first[2] - now or 0 }
