-- Whether the epoch has nothing to say, as nearly always. Then the usual operations need none of the
-- functions that follow: to make those takes the server longer than all else.
--
-- A caller for whom the epoch was read, and had nothing to say, has noted so, see vouch. That counts
-- for others who know the same run and ask for the same recovery, until "quiet". It is safe to skip
-- the rest for them, because nothing can have happened since that they would have found out by it:
--
-- - A restart or a failover gives the server another run, and the caller's connection knows that one.
-- - A flush takes the epoch away, and the locks with it.
-- - A master that was a replica for a while has its run as before. The server is looked at for that
--   once a second, and "quiet" never lasts longer than until the next look.
-- - The same look finds a clock that was set back; so does the time until "quiet", if it is longer
--   than it can be.
-- - Whatever else others write into the epoch takes "quiet_run" away, see note.
-- - Leases up to "quiet_length" that begin before "quiet" have been foreseen: a quarantine would last
--   long enough for them. Longer ones are noted one by one.

local told = redis.call('HMGET', EPOCH, 'quiet', 'quiet_run', 'quiet_recovery', 'quiet_length', 'fence')
local left = (tonumber(told[1]) or 0) - now
local quiet = left > 0 and left <= SECOND and told[2] == RUN and told[3] == ARGV[2]
local floor = (tonumber(told[5]) or 0) + 1 -- Of fences.
