-- Raises the fence of a lease, so that none that is granted here later is below it.

local owner, fence = ARGV[4], tonumber(ARGV[5])

local lock = read()
local lease = lease_of(lock, owner)
if not lease or not lives(lease) then
  return { 'gone', now }
end
if fence > lease.fence then
  lease.fence = fence
  write('HSET', LOCK, 'fence', text(fence))
end
return held(lease)
