-- How every script begins: its keys, who asks, and the time.
--
-- LOCK   a hash: the last fence, the lease (owner, process, label, since, until, confirmed), the
--        number of the last place, and for each waiter
--        "place:<owner>": "<until> <ttl> <ticket> <careful> <process> <label>"
--        A claim's limit is how many leases the key may have while its own is one of them. Where it
--        is not 1, a waiter has "limit:<owner>", too, and the leases stand together in "grants". The
--        lease then has no owner that asks (ALL), and lasts as long as any of them: so a version that
--        knows no limits lets nobody in before. "limits" says that any of this may be there. None of
--        them ends before "soonest".
--        "asked" is the last fence of those that were asked to release: see ask_release.
-- QUEUE  a sorted set: the waiters' owners, by their ticket, or by the number of their place
-- EPOCH  a hash: what is remembered of the server, and of all leases of the bucket together
--
-- Times are microseconds of the server's clock, and relative times are given: no client's clock
-- counts. A lease's end stands in its value; the keys themselves expire a day later, as garbage.
--
-- A ticket is what several servers agree by, of whom a majority grants: the microsecond at which the
-- owner came, by the clocks of a majority. It orders the queue, and fences start above it. 0 is none.

local LOCK, QUEUE, EPOCH = KEYS[1], KEYS[2], KEYS[3]
local RUN, LONGEST, PEERS = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local SECOND = 1000000
local MINUTE = 60 * SECOND
local DAY, DAY_AND_MINUTE = 86400000, '86460000' -- Milliseconds.
local RING = '%s %.0f %.0f' -- What is published: the owner, its fence, and when its lease ends.
local ALL = '*' -- The owner that is written of leases that are not one exclusive lease.
local BEGINNING = '\1' -- What stands before each of these in "grants".
local AHEAD = SECOND -- By how much a ticket is believed that is ahead of our clock.

-- Once, for the clock may move while a script runs.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
