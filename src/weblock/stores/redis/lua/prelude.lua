-- What the operations share; the text of one of them follows. The meaning of each is that of the
-- function of the same name in _core/table.py, and model/recovery.py in the tests checks what is said here.
--
-- A *run* is a server since it started or was promoted. A *loss* is noticed by the first script that
-- finds no EPOCH, or another run in it: this server may have forgotten leases that were granted or
-- renewed before "lost". That is now, if the server was emptied or if its keys may have come from
-- another server of a cluster; its start otherwise. Where another master may still answer, it is
-- two seconds later (SWITCH): so long it takes until all have heard that it was replaced.
--
--   until lost               nothing is granted, and nothing renewed, but where a slot has arrived
--   until lost + recovery    a holder can renew a lease that LOCK names, and release; all else waits
--   after that               everything as usual
--
-- It is safe because a holder believes in its lease for at most its ttl after the last answer, a ttl
-- is at most "recovery", and the last answer came before "lost", or from a renewal of a lease that
-- LOCK still names. This is the only bookkeeping: no lease is remembered outside of its LOCK.
--
-- *Slots that move.* While a slot moves between servers of a cluster, each key is on one of them, and
-- only renew and release run, with LOCK as their only key and perhaps after ASKING. They change LOCK,
-- and nothing else happens: nothing is granted, nothing is noted in EPOCH, no key is deleted. A lease
-- that another run wrote ends by another clock, so it counts as alive, until the first script that has
-- all keys without ASKING writes it anew, long enough for the recovery.
--
-- Not survived: a server's clock that is set forward; an older master that answers for longer than
-- SWITCH; programs that disagree about "recovery", and a renewed ttl above it; keys that are left
-- behind in a slot that is given away and comes back. After a loss also leases that are not renewed,
-- owners that gave up, and fences if the new clock is behind by more than "recovery".

local SWITCH = 2 * SECOND
local HUGE = math.huge
local ALONE = not EPOCH
local AWAY = ALONE or WHERE == 'asking'

local epoch = {
  run = granting,
  names = names,
  checked = checked,
  lost = lost,
  recovery = recovery,
  fence = free_fence,
}

-- Why the server recovers.
local function why()
  return redis.call('HGET', EPOCH, 'why') or ''
end

local function keep(key, length)
  redis.call('PEXPIRE', key, kept_for(length))
end

-- A server whose memory is full refuses a script's first write if it may need memory, and allows
-- what comes after. What ends or renews a lease must work there, so it first writes what needs none.
local function make_room()
  if ESSENTIAL then
    redis.call('HDEL', LOCK, '')
  end
end

local function note(facts)
  for name, value in pairs(facts) do
    epoch[name] = value
  end
  redis.call('HSET', EPOCH,
    'server', cmsgpack.pack(FORMAT, epoch.run, epoch.names, epoch.checked, epoch.lost),
    'recovery', epoch.recovery, 'fence', epoch.fence)
end

-- When this run may have lost leases, if it has just been met, and how.
local function loss_of(promoted)
  if promoted then
    return now + SWITCH, 'it has taken the place of another'
  elseif WHERE == 'cluster' then
    return now + SWITCH, 'it was started or emptied, or has just got this part of the cluster'
  end
  local switch = WHERE == 'single' and 0 or SWITCH
  local commands = redis.call('INFO', 'commandstats')
  for _, name in ipairs({ 'flushall', 'flushdb', 'swapdb', 'config|resetstat' }) do
    if string.find(commands, 'cmdstat_' .. name .. ':calls=[1-9]') then
      return now + switch, 'it may have been emptied'
    end
  end
  -- A server tells its age in whole seconds, which may be a second too much, and less than 0 where its
  -- clock was set back.
  local uptime = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%-?%d+)'))
  local since = now - math.max(0, (uptime - 1) * SECOND)
  -- What was noted later than this server started comes from elsewhere, or its clock was set back.
  local elsewhere = epoch.run ~= '' and epoch.checked > since
  return (elsewhere and now or since) + switch, 'it was started just now'
end

-- Compares the server with what is remembered of it. The same run has lost leases if it was a replica
-- meanwhile: then it has another replication id, and says that it had one before. An id that changes
-- for another reason means nothing, nor does one that a connection knows from before.
local function look_at_server()
  local info = redis.call('INFO', 'replication')
  local name = RUN .. ':' .. string.match(info, 'master_replid:(%w+)')
  local promoted = tonumber(string.match(info, 'second_repl_offset:(%-?%d+)')) > 0
  if epoch.run == RUN and (not promoted or string.find(epoch.names, name, 1, true)) then
    local names = epoch.names
    for _, each in ipairs({ NAME, name }) do
      names = string.find(names, each, 1, true) and names or string.sub(each .. ' ' .. names, 1, 500)
    end
    -- A recovery that was over when the clock was set back is over.
    local over = now < epoch.checked and recovered_at <= epoch.checked
    local lost = over and math.min(epoch.lost, now - epoch.recovery) or epoch.lost
    note({ checked = now, names = names, lost = lost })
    return
  end
  local lost, why = loss_of(promoted)
  note({
    run = RUN,
    names = name == NAME and name or name .. ' ' .. NAME,
    checked = now,
    lost = lost,
    recovery = math.max(epoch.recovery, RECOVERY),
    fence = math.max(epoch.fence, epoch.checked + SECOND),
  })
  redis.call('HSET', EPOCH, 'why', why, 'renews', WHERE == 'cluster' and not promoted and '1' or '0')
end

if not AWAY then
  if not known then
    make_room()
    look_at_server()
  end
  if RECOVERY > epoch.recovery then
    note({ recovery = RECOVERY })
  end
  if epoch.lost > now + SWITCH then -- The clock was set back.
    note({ lost = now + SWITCH })
  end
end
recovered_at = epoch.recovery > 0 and epoch.lost + epoch.recovery or 0
local recovers = now < recovered_at
local grants = not AWAY and not recovers

local lock = {
  fence = fence,
  count = count,
  run = run,
  holder = holder,
  limit = count == 0 and HUGE or least,
  mixed = mixed,
  soonest = count == 0 and HUGE or soonest,
  length = longest,
  asked = asked,
  voided = voided,
  places = places,
}
local changed = false -- Whether it must be written at the end.
local lasts_longer = false -- Whether it must be kept longer than until now.
local nobody_waits = ALONE -- Whether QUEUE is known to be empty.

-- The fields of leases and places: what was read, what is to be written, and what is to go.
local fields, puts, drops = {}, {}, {}
if ARGV[4] then -- The caller's own are needed in any case.
  local mine, waits = 'lease:' .. ARGV[4], 'place:' .. ARGV[4]
  fields[mine], fields[waits] = unpack(redis.call('HMGET', LOCK, mine, waits))
end

local function field(name)
  if fields[name] == nil then
    fields[name] = redis.call('HGET', LOCK, name)
  end
  return fields[name]
end

local function put(name, value)
  fields[name], puts[name], drops[name], changed = value, value, nil, true
end

local function drop(name)
  if fields[name] ~= false then
    fields[name], puts[name], drops[name], changed = false, nil, true, true
  end
end

-- Writes what has changed of the fields.
local function flush()
  local gone, words = {}, {}
  for name in pairs(drops) do
    gone[#gone + 1] = name
  end
  for name, value in pairs(puts) do
    words[#words + 1] = name
    words[#words + 1] = value
  end
  if #gone == 0 then
    make_room()
  end
  for first = 1, #gone, 1000 do
    redis.call('HDEL', LOCK, unpack(gone, first, math.min(#gone, first + 999)))
  end
  for first = 1, #words, 1000 do
    redis.call('HSET', LOCK, unpack(words, first, math.min(#words, first + 999)))
  end
  puts, drops = {}, {}
end

local function packed_lease(lease)
  return cmsgpack.pack(lease.limit, lease.fence, lease.since, lease.ends, lease.length, lease.confirmed, lease.run,
    lease.process, lease.label)
end

local function unpacked_lease(owner, packed)
  local lease = { owner = owner }
  lease.limit, lease.fence, lease.since, lease.ends, lease.length, lease.confirmed, lease.run, lease.process,
    lease.label = cmsgpack.unpack(packed)
  return lease
end

local function lease_of(owner)
  local packed = field('lease:' .. owner)
  return packed and unpacked_lease(owner, packed)
end

-- All leases, in the order of their fences.
local function all_leases()
  if lock.count == 1 and lock.holder ~= '' then
    local lease = lease_of(lock.holder)
    return lease and { lease } or {}
  end
  flush()
  local all, leases = redis.call('HGETALL', LOCK), {}
  for i = 1, #all, 2 do
    local owner = string.match(all[i], '^lease:(.*)$')
    if owner then
      leases[#leases + 1] = unpacked_lease(owner, all[i + 1])
    end
  end
  table.sort(leases, function(one, other) return one.fence < other.fence end)
  return leases
end

-- A lease that another run wrote ends by another clock.
local function lives(lease)
  return lease.run ~= RUN or now < lease.ends
end

-- Writes until when a lease lasts, or a new one.
local function put_lease(lease, ends)
  lasts_longer = true
  lease.ends, lease.length, lease.run = ends, math.max(0, ends - now), RUN
  put('lease:' .. lease.owner, packed_lease(lease))
  lock.length = lock.count == 1 and lease.length or math.max(lock.length, lease.length)
  lock.soonest = lock.count == 1 and ends or math.min(lock.soonest, ends)
  lock.run = lock.run == RUN and RUN or ''
end

local function add_up(leases)
  lock.count, lock.limit, lock.mixed, lock.soonest, lock.length = #leases, HUGE, false, HUGE, 0
  lock.holder = leases[1] and leases[1].owner or ''
  for _, lease in ipairs(leases) do
    lock.mixed = lock.mixed or lease.limit ~= leases[1].limit
    lock.limit = math.min(lock.limit, lease.limit)
    lock.soonest = math.min(lock.soonest, lease.ends)
    lock.length = math.max(lock.length, lease.ends - now)
  end
end

-- Ends a lease: others may follow at once.
local function drop_lease(lease)
  drop('lease:' .. lease.owner)
  lock.count = lock.count - 1
  lock.holder = lock.holder ~= lease.owner and lock.holder or ''
  if lock.count <= 1 or lock.mixed then -- Of one lease the facts are its own.
    add_up(lock.count == 0 and {} or all_leases())
  end
end

local function place_of(owner)
  local packed = field('place:' .. owner)
  if not packed then
    return nil
  end
  local place = {}
  place.ends, place.ttl, place.ticket, place.limit, place.process, place.label = cmsgpack.unpack(packed)
  return place
end

-- How many come before an owner that waits.
local function position_of(owner)
  return redis.call('ZRANK', QUEUE, owner)
end

local function put_place(owner, place)
  put('place:' .. owner,
    cmsgpack.pack(now + PLACE, place.ttl, place.ticket, place.limit, place.process, place.label))
  keep(QUEUE, 0)
end

-- Queues an owner that has no place yet.
local function queue(owner, place)
  lock.places = lock.places + 1
  redis.call('ZADD', QUEUE, place.ticket > 0 and place.ticket or lock.places, owner)
  nobody_waits = false
  put_place(owner, place)
end

local function drop_place(owner)
  redis.call('ZREM', QUEUE, owner)
  drop('place:' .. owner)
end

local function drop_places(first, last, doomed)
  for _, owner in ipairs(redis.call('ZRANGE', QUEUE, first, last)) do
    local place = place_of(owner)
    if not place or doomed(place) then
      drop_place(owner)
    end
  end
end

-- The first waiter that lives, and its place. Those before it are gone for good.
local function first_waiter()
  while not nobody_waits do
    local owner = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    local place = owner and place_of(owner)
    nobody_waits = not owner
    if not owner or place and now < place.ends and not lock.voided[owner] then
      return owner, place
    end
    drop_place(owner)
  end
end

-- Whether a claim may have a lease beside those that there are.
local function fits(limit)
  return lock.count < math.min(limit, lock.limit)
end

local function grant(owner, claim, length, confirmed)
  local lease = {
    owner = owner,
    limit = claim.limit,
    fence = next_fence(math.max(lock.fence, epoch.fence), claim.ticket),
    since = now,
    confirmed = confirmed,
    process = claim.process,
    label = claim.label,
  }
  lock.fence = lease.fence
  lock.mixed = lock.mixed or lock.count > 0 and lock.limit ~= claim.limit
  lock.limit = math.min(lock.limit, claim.limit)
  lock.count = lock.count + 1
  lock.holder = lock.holder == '' and owner or lock.holder
  put_lease(lease, now + length)
  return lease
end

-- Grants leases to the first waiters, up to one that does not fit. They are as long as a process has
-- to confirm them, and it is notified there.
local function let_in()
  while lock.count < lock.limit do
    local owner, place = first_waiter()
    if not owner or not fits(place.limit) then
      return
    end
    drop_place(owner)
    local lease = grant(owner, place, math.min(place.ttl, HANDOFF), false)
    redis.call('PUBLISH', place.process, string.format(RING, owner, lease.fence, lease.ends))
  end
end

-- Drops the leases that have ended; returns the processes that have not confirmed one of them. What
-- another run wrote is written anew, and what is further ahead than it can be is brought nearer.
local function drop_ended()
  local lasting, silent = {}, {}
  for _, lease in ipairs(all_leases()) do
    local nearest = math.min(lease.ends, now + lease.length)
    if lease.run ~= RUN then
      put_lease(lease, math.max(nearest, now + epoch.recovery, recovered_at))
    elseif nearest < lease.ends then
      put_lease(lease, nearest)
    end
    if now < lease.ends then
      lasting[#lasting + 1] = lease
    else
      drop('lease:' .. lease.owner)
      if not lease.confirmed then
        silent[lease.process] = true
      end
    end
  end
  if lock.run ~= RUN then -- So do the ends of those that gave up.
    for owner, ends in pairs(lock.voided) do
      lock.voided[owner] = math.max(ends, now + epoch.recovery)
    end
    lock.run = RUN
  end
  add_up(lasting)
  changed = true
  return silent
end

-- Drops the leases that have ended, and lets in those who fit now.
local function settle()
  for owner, ends in pairs(lock.run == RUN and lock.voided or {}) do
    if ends <= now then
      lock.voided[owner], changed = nil, true
    end
  end
  local current = now < lock.soonest and lock.soonest <= now + lock.length
  local silent = {}
  if lock.run ~= RUN or lock.count > 0 and not current then
    silent = drop_ended()
  end
  if grants then
    if next(silent) then
      drop_places(0, -1, function(place) return silent[place.process] end)
    end
    let_in()
    changed = changed or lock.count == 0
  end
end

-- Writes what has changed. Of a free key for which nobody waits, only its fence is remembered, together
-- with those of all other keys. A fence that is ahead of this server's clock is remembered by itself
-- until the clock has caught up, so that the fences of other keys need not follow it.
local function save()
  if not changed then
    return
  end
  nobody_waits = nobody_waits or lock.count == 0 and redis.call('EXISTS', QUEUE) == 0
  local is_free = lock.count == 0 and nobody_waits and not ALONE and not next(lock.voided)
  if is_free and lock.fence <= now then
    redis.call('DEL', LOCK)
    if lock.fence > epoch.fence then
      note({ fence = lock.fence })
    end
    return
  end
  if lock.count == 0 then
    lock.limit, lock.soonest, lock.asked = 0, 0, 0
  end
  lock.places = is_free and 0 or lock.places
  puts.lock = cmsgpack.pack(lock.fence, lock.count, lock.run, lock.holder, lock.limit, lock.mixed, lock.soonest,
    lock.length, lock.asked, lock.voided, lock.places)
  flush()
  if is_free then
    redis.call('PEXPIRE', LOCK, math.ceil((lock.fence - now + MINUTE + SECOND) / 1000))
    return
  end
  if not lasts_longer and lock.count > 0 then
    return
  end
  local lasting = lock.count == 1 and lock.soonest - now or lock.count > 1 and lock.length or 0
  local length = math.max(lasting, lock.fence - now)
  for _, ends in pairs(lock.voided) do
    length = math.max(length, ends - now)
  end
  keep(LOCK, length)
end

-- The answer to a caller that gets nothing ends with four values: when it may get something; why the
-- server grants nothing, or '' if other holders are the reason; the label of a holder; how many more
-- there are. While the server recovers, the key counts as held by one that it forgot. No limit is given
-- for a caller that has a lease of which it has not been told.
local function refused(answer, limit, count)
  local holder = lock.count > 0 and (lock.holder ~= '' and lease_of(lock.holder) or all_leases()[1])
  if lock.count == 1 and holder then
    lock.soonest = holder.ends
  end
  local next_end = math.max(recovers and recovered_at or 0, lock.count > 0 and lock.soonest or now)
  local because = recovers and (not limit or fits(limit)) and why() or ''
  local label, others = holder and holder.label or '', math.max(0, lock.count - 1)
  return { answer, now, count, next_end, because, label, others }
end

local function held(lease)
  -- A sixth word says that the holder was asked to release.
  local asked = lease.fence <= lock.asked and 1 or nil
  return { 'held', now, lease.fence, lease.ends, lease.confirmed and 1 or 0, asked }
end

-- Confirms and renews a lease. It is never shortened.
local function renewed(lease, ttl)
  local ends = math.min(lease.ends, now + lease.length)
  lease.confirmed = true
  put_lease(lease, math.max(ends, now + ttl))
  return held(lease)
end

-- The heartbeat of a waiter: it keeps its place, or has become a holder. While the server recovers, no
-- lease that LOCK names counts for somebody who has not been told of it.
local function beat(owner, ttl)
  local lease = lease_of(owner)
  if lease then
    if recovers then
      return refused('waiting', nil, 0)
    end
    return lives(lease) and renewed(lease, ttl) or { 'gone', now }
  end
  -- A place that nobody has kept for a day may have outlived the queue.
  local place = place_of(owner)
  local position = place and position_of(owner)
  if not position or lock.voided[owner] then
    return { 'gone', now }
  end
  put_place(owner, place)
  return refused('waiting', place.limit, position)
end
