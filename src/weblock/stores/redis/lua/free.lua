-- The usual acquire: the key has neither a lease nor a waiter, or one lease that excludes others.

local owner, process, label, length = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local room, ticket, limit = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10] or 1)

if usual and count == 0 and places == 0 then
  local number, ends = grant_alone(owner, limit, ticket, length, true, process, label)
  return { 'held', now, number, ends, 1 }
end

local excludes = usual and least == 1 and ticket == 0 and now < soonest and soonest <= now + longest
local found = excludes and redis.call('HMGET', LOCK, 'lease:' .. owner, 'place:' .. owner, 'lease:' .. holder)
local waiters = found and not found[1] and not found[2] and redis.call('ZCARD', QUEUE)
if waiters and (room == 0 or waiters < room) then
  local its_label = select(9, cmsgpack.unpack(found[3]))
  if room > 0 then
    redis.call('ZADD', QUEUE, places + 1, owner)
    redis.call('PEXPIRE', QUEUE, kept_for(0))
    redis.call('HSET', LOCK,
      'lock', cmsgpack.pack(fence, count, run, holder, least, mixed, soonest, longest, asked, voided, places + 1),
      'place:' .. owner, cmsgpack.pack(now + PLACE, length, ticket, limit, process, label))
  end
  return { room > 0 and 'waiting' or 'busy', now, waiters, soonest, '', its_label, 0 }
end
