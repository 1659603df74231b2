-- Makes a lease that of another owner, with the same fence and limit, for a ttl from now. Asking again is harmless:
-- an owner that has it keeps it, and it is never shortened.

local owner, heir, process, label, ttl = ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])

settle()
local answer, lease = { 'gone', now }, lease_of(heir)
if recovers then
  answer = { 'unknown', now, why() }
elseif not lock.voided[heir] then
  if not lease then
    lease = lease_of(owner)
    if lease then
      drop('lease:' .. owner)
      lock.holder = lock.holder == owner and heir or lock.holder
      lease.ends = 0
    end
  end
  if lease then
    lease.owner, lease.process, lease.label = heir, process, label
    answer = renewed(lease, ttl)
  end
end
save()
return answer
