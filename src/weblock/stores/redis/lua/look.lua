-- All that is known of a key, and changes nothing. It can run with LOCK alone, and then tells of no waiters.

local leases, places = {}, {}
for number, lease in ipairs(all_leases()) do
  leases[number] = {
    lease.owner, lease.process, lease.label, text(lease.limit), text(lease.fence),
    text(lease.since), text(lives(lease) and math.max(lease.ends, now + 1) or lease.ends), lease.confirmed and 1 or 0,
  }
end
for _, owner in ipairs(QUEUE and redis.call('ZRANGE', QUEUE, 0, -1) or {}) do
  places[#places + 1] = { owner, redis.call('HGET', LOCK, 'place:' .. owner) }
end
return { now, text(lock.fence), leases, places, text(lock.asked), lock.voided }
