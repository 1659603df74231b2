-- A key that nobody has, or that another has whose lease lasts. Whatever else there is falls through, and
-- so does each claim with a limit other than 1.

local VOIDED = KEYS[4]
local owner, process, label = ARGV[4], ARGV[5], ARGV[6]
local ttl, room, ticket = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

if quiet and not ARGV[10] then
  local there = redis.call('EXISTS', LOCK, VOIDED)
  if there == 0 and ttl <= tonumber(told[4]) then -- So there is neither a lease nor a waiter.
    local fence = math.max(floor, came_at(ticket))
    put_lease(fence, owner, process, label, ttl, true)
    redis.call('PEXPIRE', LOCK, DAY_AND_MINUTE)
    return { 'held', now, fence, now + ttl, 1 }
  end

  local place = 'place:' .. owner
  local got = redis.call('HMGET', LOCK, 'owner', 'until', 'label', 'places', place, 'limits')
  local others = got[1] and got[1] ~= '' and got[1] ~= owner and now < tonumber(got[2])
  if others and there == 1 and not got[5] and not got[6] and ticket == 0 then -- So VOIDED is not there.
    local waiters = redis.call('ZCARD', QUEUE)
    if waiters < room then
      local rank = (tonumber(got[4]) or 0) + 1
      redis.call('HSET', LOCK, 'places', rank, place, packed_place(ttl, 0, process, label))
      redis.call('ZADD', QUEUE, rank, owner)
      redis.call('PEXPIRE', QUEUE, DAY)
      return { 'waiting', now, waiters, tonumber(got[2]), '', got[3] }
    elseif room == 0 then
      return { 'busy', now, tonumber(got[2]), waiters, '', got[3] }
    end
  end
end
