-- The usual acquire: the key has neither a lease nor a waiter, or one lease that excludes others.

local owner, process, label, length = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local room, ticket, limit = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10] or '1'

if usual and count == '0' and not got[2] then
  local number, ends = grant_alone(owner, limit, ticket, length, '1', process, label)
  return { 'held', now, number, ends, 1 }
end

local ends = tonumber(soonest)
local waiters = usual and least == '1' and ticket == 0 and not got[3] and not got[4]
  and now < ends and ends <= now + longest and redis.call('ZCARD', QUEUE)
if waiters and (room == 0 or waiters < room) then
  local lease = redis.call('HGET', LOCK, 'lease:' .. holder)
  local its_label = string.match(lease, '^%d+ %d+ %d+ %d+ %d+ [01] %w* %S* (.*)$')
  if room == 0 then
    return { 'busy', now, waiters, ends, '', its_label, 0 }
  end
  local number = (got[2] or 0) + 1
  redis.call('ZADD', QUEUE, number, owner)
  redis.call('PEXPIRE', QUEUE, DAY_AND_MINUTE)
  redis.call('HSET', LOCK, 'places', number,
    waits, text(now + PLACE) .. ' ' .. length .. ' 0 ' .. limit .. ' ' .. process .. ' ' .. label)
  return { 'waiting', now, waiters, ends, '', its_label, 0 }
end
