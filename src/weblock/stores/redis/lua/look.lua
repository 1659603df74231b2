-- All that is known of a key, and changes nothing.

local places = {}
for _, owner in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
  places[#places + 1] = { owner, redis.call('HGET', LOCK, 'place:' .. owner) }
end
local lease = redis.call('HMGET', LOCK, 'fence', 'owner', 'process', 'label', 'since', 'until', 'confirmed')
return { now, lease, places }
