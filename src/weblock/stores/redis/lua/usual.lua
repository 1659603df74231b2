-- What the usual acquire and release share. Both return before the prelude makes its functions, and do
-- what those would do: the tests run each script with and without its usual cases, and compare.

local usual = known and WHERE ~= 'asking' and now >= recovered_at and (got[8] or RUN) == RUN
  and not got[10]

-- Writes the only lease of a key. Limit and length are texts.
local function grant_alone(owner, limit, ticket, length, confirmed, process, label)
  local fence = next_fence(math.max(tonumber(told[7]) or 0, tonumber(got[1]) or 0), ticket)
  local ends = now + length
  local packed_fence, packed_ends = text(fence), text(ends)
  local times = packed_fence .. ' ' .. text(now) .. ' ' .. packed_ends .. ' ' .. length
  local lease = limit .. ' ' .. times .. ' ' .. confirmed .. ' ' .. RUN .. ' ' .. process .. ' ' .. label
  redis.call('HSET', LOCK, 'fence', packed_fence, 'count', '1', 'holder', owner, 'limit', limit,
    'soonest', packed_ends, 'length', length, 'run', RUN, 'lease:' .. owner, lease)
  redis.call('PEXPIRE', LOCK, text(DAY + math.max(tonumber(length), fence - now) / 1000))
  return fence, ends
end
