-- What the usual acquire and release share. Both return before the prelude makes its functions, and do
-- what those would do: the tests run each script with and without its usual cases, and compare.

local usual = known and WHERE ~= 'asking' and now >= recovered_at and run == RUN and not next(voided)

-- Writes the only lease of a key.
local function grant_alone(owner, limit, ticket, length, confirmed, process, label)
  local number, ends = next_fence(math.max(free_fence, fence), ticket), now + length
  redis.call('HSET', LOCK,
    'lock', cmsgpack.pack(number, 1, RUN, owner, limit, false, ends, length, asked, voided, places),
    'lease:' .. owner, cmsgpack.pack(limit, number, now, ends, length, confirmed, RUN, process, label))
  redis.call('PEXPIRE', LOCK, kept_for(math.max(length, number - now)))
  return number, ends
end
