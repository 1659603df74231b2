-- What a look tells of a waiter.
local function shown_place(owner)
  local packed, limit = unpack(redis.call('HMGET', LOCK, 'place:' .. owner, 'limit:' .. owner))
  return { owner, packed, limit or '1' }
end

-- What a look tells of a key.
local function shown(lock, places)
  local leases = {}
  for number, lease in ipairs(lock.grants) do
    leases[number] = {
      lease.owner, lease.process, lease.label, text(lease.limit), text(lease.fence),
      text(lease.since), text(lease.ends), lease.confirmed and 1 or 0,
    }
  end
  return { now, text(lock.fence), leases, places }
end
