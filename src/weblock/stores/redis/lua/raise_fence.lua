-- Raises the fence of a lease, so that none that is granted here later is below it.

local lease, fence = lease_of(ARGV[4]), tonumber(ARGV[5])
if not lease or not lives(lease) then
  return { 'gone', now }
end
if fence > lease.fence then
  lease.fence, lock.fence = fence, math.max(lock.fence, fence)
  put('lease:' .. lease.owner, packed_lease(lease))
  save()
end
return held(lease)
