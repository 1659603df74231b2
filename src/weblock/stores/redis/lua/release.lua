-- Takes back whatever the owner has, lease or place, and passes the key on. With void, a request
-- of the same owner that is still under way is refused for so many microseconds.

local VOIDED = KEYS[4]
local owner, void = ARGV[4], tonumber(ARGV[5])

despite_full_memory()
local quarantine = quarantined_until(0)
local lock = read(quarantine)
local answer = 'gone'
if holds(lock, owner) then
  if now < lock.ends then
    answer = 'released'
  end
  lock.owner = ''
else
  drop_place(owner)
end
if void > 0 then
  redis.call('SET', VOIDED, '1', 'PX', text(math.ceil(void / 1000)))
end
settle(lock, quarantine)
return { answer, now }
