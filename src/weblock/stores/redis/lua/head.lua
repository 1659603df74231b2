-- A lock has three keys, which share a hash tag and so move to another server of a cluster together.
--
-- LOCK   a hash. There is a field for each lease and each place:
--          lease:<owner>  "<limit> <fence> <since> <until> <length> <confirmed> <run> <process> <label>"
--          place:<owner>  "<until> <ttl> <ticket> <limit> <process> <label>"
--        "places" is the number of the last place. So that a script need not read all leases, and as one
--        field is read and written faster than ten, what they have in common is in "lock", in this order:
--          fence    the last fence
--          count    how many leases there are
--          run      the run of the server that wrote all of them, or nothing if several did
--          holder   the owner of one of them, of the oldest if there is just one
--          least    the smallest limit of them
--          mixed    1 if their limits differ
--          soonest  none of them ends before
--          longest  none of them was longer when it was written
--          asked    the last fence of the holders that were asked to release
--          voided   the owners that gave up: "<owner> <until>;" for each
-- QUEUE  a sorted set: the waiters' owners, by their ticket, or by the number of their place
-- EPOCH  a hash: what is remembered of the server, for all locks of a bucket
--          format     the version of this layout
--          run        which run of which server grants here, and its replication ids ("replids")
--          checked    when the server was last asked for them
--          lost, why  when it may last have lost leases, and how
--          recovery   the largest recovery that any program has asked for
--          renews     '1' if leases can be renewed before "lost"
--          fence      no key that is free had a larger one
--
-- Times are microseconds of the server's clock, and relative times are given: no client's clock counts.
-- The keys themselves expire a day after the last lease, as garbage.
--
-- A ticket is what several servers agree by, of whom a majority grants: the microsecond at which the
-- owner came, by the clocks of a majority. It orders the queue, and fences start above it. 0 is none.

local LOCK, QUEUE, EPOCH = KEYS[1], KEYS[2], KEYS[3]
local RUN, REPLID = string.match(ARGV[1], '^(%w*):?(%w*)')
local RECOVERY = tonumber(ARGV[2])
local WHERE = ARGV[3] -- "single", "sentinel", "cluster", or "asking": after ASKING, in a cluster.
local FORMAT = '2'
local SECOND = 1000000
local MINUTE = 60 * SECOND
local DAY, DAY_AND_MINUTE = 86400000, '86460000' -- Milliseconds.
local RING = '%s %.0f %.0f' -- What is published: the owner, its fence, and when its lease ends.

-- Once, for the clock may move while a script runs.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- What is remembered of the server.
local told = {}
if EPOCH then
  told = redis.call('HMGET', EPOCH, 'format', 'run', 'replids', 'checked', 'lost', 'recovery', 'fence')
  if told[1] and told[1] ~= FORMAT then
    return redis.error_reply('WEBLOCKFORMAT ' .. told[1])
  end
end
local checked, lost, recovery = tonumber(told[4]) or 0, tonumber(told[5]) or 0, tonumber(told[6]) or 0
local recovered_at = recovery > 0 and lost + recovery or 0

-- Whether the server was looked at within a second, and is as it was then.
local known = told[2] == RUN and checked <= now and now <= checked + SECOND
  and RECOVERY <= recovery and string.find(told[3], REPLID, 1, true)

-- The lock: what its leases have in common, and what the caller has.
local mine, waits = 'lease:' .. (ARGV[4] or ''), 'place:' .. (ARGV[4] or '')
local got = redis.call('HMGET', LOCK, 'lock', 'places', mine, waits)
local fence, count, run, holder, least, mixed, soonest, longest, asked, voided =
  '0', '0', RUN, '', '0', '0', '0', '0', '0', ''
if got[1] then
  fence, count, run, holder, least, mixed, soonest, longest, asked, voided =
    string.match(got[1], '^(%d+) (%d+) (%w*) (%S*) (%d+) ([01]) (%d+) (%d+) (%d+) (.*)$')
end

local function text(number)
  return string.format('%.0f', number)
end

-- How long a key is kept of which something lasts for so long.
local function kept_for(length)
  return length <= MINUTE and DAY_AND_MINUTE or text(DAY + length / 1000)
end

-- The fence of a new lease: above the last, not before its owner came as far as its ticket can be
-- believed, and above those that the server may have forgotten.
local function next_fence(last, ticket)
  local came_at = ticket > 0 and math.max(math.min(ticket, now + SECOND), now - MINUTE) or now
  return math.max(last + 1, came_at, recovered_at)
end
