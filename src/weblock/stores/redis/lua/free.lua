-- The usual acquire: nothing is stored of the key, so it has neither a lease nor a waiter.

local owner, process, label, length = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local ticket, limit = tonumber(ARGV[9]), ARGV[10] or '1'

if known and WHERE ~= 'asking' and now >= recovered_at and not got[1] then
  local fence = math.max((tonumber(told[7]) or 0) + 1, came_at(ticket), recovered_at)
  local ends = now + length
  local packed_fence, packed_ends = text(fence), text(ends)
  local times = packed_fence .. ' ' .. text(now) .. ' ' .. packed_ends .. ' ' .. length
  local lease = limit .. ' ' .. times .. ' 1 ' .. RUN .. ' ' .. process .. ' ' .. label
  redis.call('HSET', LOCK, 'fence', packed_fence, 'count', '1', 'holder', owner, 'limit', limit,
    'soonest', packed_ends, 'length', length, 'run', RUN, mine, lease)
  redis.call('PEXPIRE', LOCK, text(DAY + length / 1000))
  return { 'held', now, fence, ends, 1 }
end
