-- Makes a lease that of another owner, with the same fence and limit, for a ttl from now. Asking again is harmless:
-- an owner that has it keeps it, and it is never shortened.

local VOIDED = KEYS[4]
local owner, heir, process, label, ttl = ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])

essential = true
local quarantine = quarantined_until(ttl)
local lock = read()
settle(lock, quarantine)

if redis.call('EXISTS', VOIDED) == 1 then
  return { 'gone', now }
end
local lease = lease_of(lock, heir)
if not lease then
  lease = lease_of(lock, owner)
  if not lease then
    return { 'gone', now }
  end
  forget(owner)
  lease.ends = 0
end
lease.owner, lease.process, lease.label = heir, process, label
if lease.limit == 1 then
  write('HSET', LOCK, 'owner', heir, 'process', process, 'label', label)
end
local answer = refresh(lock, quarantine, heir, ttl)
save(lock)
return answer
