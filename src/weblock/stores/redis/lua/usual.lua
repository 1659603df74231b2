-- What the usual acquire and release share. Both return before the prelude makes its functions, and do
-- what those would do: the tests run each script with and without its usual cases, and compare.

local usual = known and WHERE ~= 'asking' and now >= recovered_at and run == RUN and voided == ''

-- Writes the only lease of a key. The limit is a text.
local function grant_alone(owner, limit, ticket, length, confirmed, process, label)
  local number = next_fence(math.max(tonumber(told[7]) or 0, tonumber(fence)), ticket)
  local ends, since = now + length, text(now)
  local packed_fence, packed_ends = number == now and since or text(number), text(ends)
  redis.call('HSET', LOCK,
    'lock', packed_fence .. ' 1 ' .. RUN .. ' ' .. owner .. ' ' .. limit .. ' 0 ' .. packed_ends .. ' ' .. length
      .. ' ' .. asked .. ' ',
    'lease:' .. owner, limit .. ' ' .. packed_fence .. ' ' .. since .. ' ' .. packed_ends .. ' ' .. length .. ' '
      .. confirmed .. ' ' .. RUN .. ' ' .. process .. ' ' .. label)
  redis.call('PEXPIRE', LOCK, kept_for(math.max(tonumber(length), number - now)))
  return number, ends, packed_fence, packed_ends
end
