-- Raises the fence of a lease, so that none that is granted here later is below it.

local owner, fence = ARGV[4], tonumber(ARGV[5])

local lock = read()
if lock.owner ~= owner or not lives(lock) then
  return { 'gone', now }
end
if fence > lock.fence then
  lock.fence = fence
  write('HSET', LOCK, 'fence', text(fence))
end
return held(lock)
