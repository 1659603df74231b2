-- What the usual acquire and release share. Both return before the prelude makes its functions, and do
-- what those would do: the tests run each script with and without its usual cases, and compare.

local usual = known and WHERE ~= 'asking' and now >= recovered_at and (got[8] or RUN) == RUN

-- Writes the only lease of a key. Limit and length are texts.
local function grant_alone(owner, limit, ticket, length, confirmed, process, label)
  local last = math.max(tonumber(told[7]) or 0, tonumber(got[1]) or 0)
  local fence = math.max(last + 1, came_at(ticket), recovered_at)
  local ends = now + length
  local packed_fence, packed_ends = text(fence), text(ends)
  local times = packed_fence .. ' ' .. text(now) .. ' ' .. packed_ends .. ' ' .. length
  local lease = limit .. ' ' .. times .. ' ' .. confirmed .. ' ' .. RUN .. ' ' .. process .. ' ' .. label
  redis.call('HSET', LOCK, 'fence', packed_fence, 'count', '1', 'holder', owner, 'limit', limit,
    'soonest', packed_ends, 'length', length, 'run', RUN, 'lease:' .. owner, lease)
  local lasting = math.max(tonumber(length), fence - now)
  for gone in string.gmatch(got[10] or '', ' (%d+);') do
    lasting = math.max(lasting, gone - now)
  end
  redis.call('PEXPIRE', LOCK, text(DAY + lasting / 1000))
  return fence, ends
end
