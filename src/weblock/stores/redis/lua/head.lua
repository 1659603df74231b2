-- A lock has three keys, which share a hash tag and so move to another server of a cluster together.
--
-- LOCK   a hash, whose values are lists in MessagePack. There is a field for each lease and each place:
--          lease:<owner>  limit, fence, since, until, length, confirmed, run, process, label
--          place:<owner>  until, ttl, ticket, limit, process, label
--        So that a script need not read all leases, what they have in common is in "lock":
--          fence    the last fence
--          count    how many leases there are
--          run      the run of the server that wrote all of them, or nothing if several did
--          holder   the owner of one of them, of the oldest if there is just one
--          least    the smallest limit of them
--          mixed    whether their limits differ
--          soonest  none of them ends before
--          longest  none of them was longer when it was written
--          asked    the last fence of the holders that were asked to release
--          voided   the owners that gave up, and until when each of them counts as gone
--          places   the number of the last place
-- QUEUE  a sorted set: the waiters' owners, by their ticket, or by the number of their place
-- EPOCH  a hash: what is remembered of the server, for all locks of a bucket
--          server    a list in MessagePack:
--            format    the version of this layout
--            run       which run of which server grants here
--            names     the names by which connections know it: "<run>:<replication id>" for each
--            checked   when the server was last asked for its name
--            lost      when it may last have lost leases
--          why       how it may have lost them
--          recovery  the largest recovery that any program has asked for
--          renews    '1' if leases can be renewed before "lost"
--          fence     no key that is free had a larger one
--
-- Times are microseconds of the server's clock, and relative times are given: no client's clock counts.
-- The keys themselves expire a day after the last lease, as garbage.
--
-- A ticket is what several servers agree by, of whom a majority grants: the microsecond at which the
-- owner came, by the clocks of a majority. It orders the queue, and fences start above it. 0 is none.

local LOCK, QUEUE, EPOCH = KEYS[1], KEYS[2], KEYS[3]
local NAME = ARGV[1] -- That of the server, as the caller's connection knows it.
local RECOVERY = tonumber(ARGV[2])
local WHERE = ARGV[3] -- "single", "sentinel", "cluster", or "asking": after ASKING, in a cluster.
local FORMAT = '3'
local SECOND = 1000000
local MINUTE = 60 * SECOND
local DAY = 86400000 -- Milliseconds.
local RING = '%s %.0f %.0f' -- What is published: the owner, its fence, and when its lease ends.

-- Once, for the clock may move while a script runs.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- What is remembered of the server.
local format, granting, names, checked, lost, recovery, free_fence = FORMAT, '', '', 0, 0, 0, 0
local told = EPOCH and redis.call('HMGET', EPOCH, 'server', 'recovery', 'fence')
if told and told[1] then
  format, granting, names, checked, lost = cmsgpack.unpack(told[1])
  if format ~= FORMAT then
    return redis.error_reply('WEBLOCKFORMAT ' .. format)
  end
  recovery, free_fence = tonumber(told[2]), tonumber(told[3])
end
local recovered_at = recovery > 0 and lost + recovery or 0

-- Whether the server was looked at within a second, and is as it was then.
local known = checked <= now and now <= checked + SECOND and RECOVERY <= recovery and string.find(names, NAME, 1, true)
local RUN = known and granting or string.match(NAME, '^%w*')

-- What the lock's leases have in common.
local packed = redis.call('HGET', LOCK, 'lock')
local fence, count, run, holder, least, mixed, soonest, longest, asked, voided, places =
  0, 0, RUN, '', 0, false, 0, 0, 0, {}, 0
if packed then
  fence, count, run, holder, least, mixed, soonest, longest, asked, voided, places = cmsgpack.unpack(packed)
end

-- How long a key is kept of which something lasts for so long.
local function kept_for(length)
  return DAY + math.ceil(math.max(MINUTE, length) / 1000)
end

-- The fence of a new lease: above the last, not before its owner came as far as its ticket can be
-- believed, and above those that the server may have forgotten.
local function next_fence(last, ticket)
  local came_at = ticket > 0 and math.max(math.min(ticket, now + SECOND), now - MINUTE) or now
  return math.max(last + 1, came_at, recovered_at)
end
