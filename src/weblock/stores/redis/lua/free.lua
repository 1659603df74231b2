-- The usual acquire: the key has neither a lease nor a waiter.

local owner, process, label, length = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local ticket, limit = tonumber(ARGV[9]), ARGV[10] or '1'
local voided = got[10] or ''

if known and WHERE ~= 'asking' and now >= recovered_at and not got[2] and not got[11] and (got[8] or RUN) == RUN
  and #voided < 8000 and not string.find(';' .. voided, ';' .. owner .. ' ', 1, true) then
  local last = math.max(tonumber(told[7]) or 0, tonumber(got[1]) or 0)
  local fence = math.max(last + 1, came_at(ticket), recovered_at)
  local ends = now + length
  local packed_fence, packed_ends = text(fence), text(ends)
  local times = packed_fence .. ' ' .. text(now) .. ' ' .. packed_ends .. ' ' .. length
  local lease = limit .. ' ' .. times .. ' 1 ' .. RUN .. ' ' .. process .. ' ' .. label
  redis.call('HSET', LOCK, 'fence', packed_fence, 'count', '1', 'holder', owner, 'limit', limit,
    'soonest', packed_ends, 'length', length, 'run', RUN, mine, lease)
  local lasting = tonumber(length)
  for gone in string.gmatch(voided, ' (%d+);') do
    lasting = math.max(lasting, gone - now)
  end
  redis.call('PEXPIRE', LOCK, text(DAY + lasting / 1000))
  return { 'held', now, fence, ends, 1 }
end
