-- Makes a lease that of another owner, with the same fence, for a ttl from now. Asking again is harmless:
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
if not holds(lock, heir) then
  if not holds(lock, owner) then
    return { 'gone', now }
  end
  forget(owner)
  lock.ends = 0
end
write('HSET', LOCK, 'owner', heir, 'process', process, 'label', label)
lock.owner = heir
return refresh(lock, quarantine, heir, ttl)
