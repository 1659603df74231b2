-- The usual acquire: the key has neither a lease nor a waiter, or one lease that excludes others.

local owner, process, label, length = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local room, ticket, limit = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10] or '1'

if usual and not got[2] and not got[11] then
  local fence, ends = grant_alone(owner, limit, ticket, length, '1', process, label)
  return { 'held', now, fence, ends, 1 }
end

local waiters = usual and got[4] == '1' and ticket == 0 and not got[12] and not got[13]
  and now < tonumber(got[6]) and tonumber(got[6]) <= now + got[7] and redis.call('ZCARD', QUEUE)
if waiters and (room == 0 or waiters < room) then
  local lease, ends = redis.call('HGET', LOCK, 'lease:' .. got[3]), tonumber(got[6])
  local holder = string.match(lease, '^%d+ %d+ %d+ %d+ %d+ [01] %w* %S* (.*)$')
  if room == 0 then
    return { 'busy', now, waiters, ends, '', holder, 0 }
  end
  local number = (got[11] or 0) + 1
  redis.call('ZADD', QUEUE, number, owner)
  redis.call('PEXPIRE', QUEUE, text(DAY))
  redis.call('HSET', LOCK, 'places', number,
    waits, text(now + PLACE) .. ' ' .. length .. ' 0 ' .. limit .. ' ' .. process .. ' ' .. label)
  return { 'waiting', now, waiters, ends, '', holder, 0 }
end
