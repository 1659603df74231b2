-- The usual acquire: nothing is stored of the key, so it has neither a lease nor a waiter.

local owner, process, label = ARGV[4], ARGV[5], ARGV[6]
local claim = {
  ttl = tonumber(ARGV[7]),
  ticket = tonumber(ARGV[9]),
  limit = tonumber(ARGV[10] or '1'),
  process = process,
  label = label,
}
local room = tonumber(ARGV[8])

if known and WHERE ~= 'asking' and now >= recovered_at() and redis.call('EXISTS', LOCK) == 0 then
  local fence = next_fence(0, claim.ticket)
  local lease = {
    limit = claim.limit,
    fence = fence,
    since = now,
    ends = now + claim.ttl,
    length = claim.ttl,
    confirmed = true,
    run = RUN,
    process = process,
    label = label,
  }
  redis.call('HSET', LOCK, 'fence', fence, 'count', 1, 'holder', owner, 'limit', claim.limit, 'mixed', '0',
    'soonest', lease.ends, 'length', claim.ttl, 'run', RUN, 'lease:' .. owner, packed_lease(lease))
  redis.call('PEXPIRE', LOCK, string.format('%.0f', DAY + claim.ttl / 1000))
  return held(lease, 0)
end
