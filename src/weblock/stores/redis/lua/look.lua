-- All that is known of a key, and changes nothing. It can run with LOCK alone, and then tells of no waiters.

local leases, waiting, gone = {}, {}, {}
for number, lease in ipairs(all_leases()) do
  leases[number] = {
    lease.owner, lease.process, lease.label, lease.limit, lease.fence, lease.since,
    lives(lease) and math.max(lease.ends, now + 1) or lease.ends, lease.confirmed and 1 or 0,
  }
end
for _, owner in ipairs(QUEUE and redis.call('ZRANGE', QUEUE, 0, -1) or {}) do
  local place = place_of(owner)
  if place then
    waiting[#waiting + 1] = { owner, place.process, place.label, place.limit, place.ttl, place.ends }
  end
end
for owner, ends in pairs(lock.voided) do
  gone[#gone + 1] = { owner, ends }
end
return { now, lock.fence, leases, waiting, lock.asked, gone }
