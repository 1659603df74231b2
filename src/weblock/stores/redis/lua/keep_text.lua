-- Keeps a text for so many milliseconds, if the owner has a lease of the key now, and returns whether it has.

local TEXT, LOCK = KEYS[1], KEYS[2]
local owner, keep, text = ARGV[4], ARGV[5], ARGV[6]

local clock = redis.call('TIME')
local lease = redis.call('HGET', LOCK, 'lease:' .. owner)
if not lease or select(4, cmsgpack.unpack(lease)) <= clock[1] * 1000000 + clock[2] then
  return 0
end
redis.call('HSET', TEXT, 'text', text)
redis.call('PEXPIRE', TEXT, keep)
return 1
