-- What every operation shares; the text of the operation follows. The meaning of each is that of
-- the pure function of the same name in _core/table.py.

local SWITCH = 2 * SECOND -- Until all who talk to a master have heard that it was replaced.

-- Lua would write large numbers as 1.79e+15.
local function text(number)
  return string.format('%.0f', number)
end

-- Has a key expire a day after what it says has ended.
local function keep(key, ends)
  redis.call('PEXPIRE', key, text(DAY + math.max(0, ends - now) / 1000))
end

-- A server whose memory is full refuses a script's first write if it may need memory, and allows
-- what comes after. What ends or renews a lease must work there (it is essential), so its first
-- write is one that needs none, and changes nothing.
local essential, written = false, false

-- Writes what needs no memory.
local function erase(...)
  written = true
  return redis.call(...)
end

-- Writes what may need memory.
local function write(...)
  if essential and not written then
    erase('HDEL', LOCK, '')
  end
  return erase(...)
end

-- The epoch. It says
--
-- run       which run of which server grants here: all names by which its connections know it
-- replid    its replication id when it was last looked at
-- checked   when that was. Later than a second after this, it is looked at again
-- lost      a lease that this server may have forgotten was not granted or renewed after this
-- why       how it lost leases
-- recovered when those have ended, as far as those who have asked know how long they were
-- longest   all leases granted since are at most so long,
-- ends      and end before this; but for those
-- long      that are longer than a minute: "<owner> <ends> <length>;" for each
-- fence     no key that is free had a larger one
-- quiet     until when none of the rest has anything to say to the usual operations of those who
-- quiet_run know this run, and
-- quiet_recovery ask for this recovery, and
-- quiet_length whose leases are at most so long
-- ahead     by how much this server's clock is ahead of that by which keys were granted
-- level     that were handed to it, until when those may be held
local epoch = { ahead = 0, level = 0, fence = 0, recovered = 0 }
local NUMBERS = { 'checked', 'lost', 'recovered', 'longest', 'ends', 'fence', 'ahead', 'level' }

local function recall()
  local got = redis.call('HMGET', EPOCH, 'run', 'replid', 'why', 'long', unpack(NUMBERS))
  epoch = { run = got[1] or '', replid = got[2], why = got[3] or '', long = got[4] or '' }
  for i, name in ipairs(NUMBERS) do
    epoch[name] = tonumber(got[4 + i]) or 0
  end
end

-- What is noted may have something to say to all, so that it is not quiet any more.
local function note(facts)
  local words = { 'quiet_run', facts.quiet_run or '' }
  facts.quiet_run = nil
  for name, value in pairs(facts) do
    epoch[name] = value
    words[#words + 1] = name
    words[#words + 1] = value
  end
  write('HSET', EPOCH, unpack(words))
end

-- Whether the server may ever have been emptied, other than by a restart.
local function emptied()
  local commands = redis.call('INFO', 'commandstats')
  for _, name in ipairs({ 'flushall', 'flushdb', 'swapdb', 'config|resetstat' }) do
    if string.find(commands, 'cmdstat_' .. name .. ':calls=[1-9]') then
      return true
    end
  end
  return false
end

-- When the server started, or a little later. It says how long it has been up as a difference of
-- whole seconds, which may be a second too much, and less than 0 where its clock was set back.
local function started()
  local uptime = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%-?%d+)'))
  return now - math.max(0, (uptime - 1) * SECOND)
end

-- What a master's clock shows when that of the caller shows 0: at least, and at most.
local function clock_of(run)
  local early, late = string.match(PEERS, run .. ':(%-?%d+):(%-?%d+)')
  return tonumber(early), tonumber(late)
end

-- How long a lease may be that was forgotten, judged by those that are known.
local function longest_known(lost)
  local longest = epoch.longest
  for ends, length in string.gmatch(epoch.long, '%S+ (%d+) (%d+);') do
    if tonumber(ends) > lost then
      longest = math.max(longest, tonumber(length))
    end
  end
  return longest
end

-- When leases were lost last, if any were, and how. What was noted later than this server
-- started comes from elsewhere, or its clock has moved.
local function last_loss(promoted)
  if promoted then
    return now + SWITCH, 'it has taken the place of another'
  end
  if emptied() then
    return now, 'it may have been emptied'
  end
  local since = started()
  local elsewhere = epoch.run ~= '' and epoch.checked > since
  return elsewhere and now or since, 'it was started just now'
end

-- The delayed restart of the Redlock algorithm, by itself: a server that may have lost leases
-- grants nothing until those have ended.
local function begin_epoch(promoted)
  local lost, why = last_loss(promoted)
  note({
    run = ' ' .. RUN .. ' ',
    lost = lost,
    why = why,
    recovered = lost + longest_known(lost),
    fence = math.max(epoch.fence, epoch.checked + SECOND),
    ahead = 0,
  })
end

-- The keys have moved here from a master that lives, and nothing was lost; but its clock, by which
-- they were granted, may be another. Those that ours is ahead of are held for so much longer.
local function take_over(ahead)
  local before = now < epoch.level and epoch.ahead or 0
  note({
    run = ' ' .. RUN .. ' ',
    lost = epoch.lost + ahead,
    recovered = epoch.recovered + ahead,
    ahead = before + math.max(0, ahead),
    level = math.max(epoch.level + ahead, now + longest_known(now - ahead)),
  })
end

-- The clock was set back: what was to come is as far away as it was.
local function set_back()
  local by = epoch.checked - now
  note({
    lost = epoch.lost - by,
    recovered = epoch.recovered - by,
  })
end

-- Compares the server with what is remembered of it. The same run has lost leases if it has been
-- a replica meanwhile: then it has got another replication id, and says that it had one before.
-- An id that changes for another reason means nothing, nor does one that a connection knows from
-- before. Whether an epoch begins.
local function look_at_server()
  local info = redis.call('INFO', 'replication')
  local replid = string.match(info, 'master_replid:(%w+)')
  local promoted = tonumber(string.match(info, 'second_repl_offset:(%-?%d+)')) > 0
  local run, former = string.match(RUN, '^%w*'), string.match(epoch.run, '^ (%w*)')
  local _, late = clock_of(run)
  local begun = false
  if run == former and (replid == epoch.replid or not promoted) then
    if now < epoch.checked then
      set_back()
    end
    if not string.find(epoch.run, ' ' .. RUN .. ' ', 1, true) then
      note({ run = string.sub(epoch.run, 1, 500) .. RUN .. ' ' })
    end
  elseif former and former ~= run and clock_of(former) and late then
    take_over(late - clock_of(former))
  else
    begin_epoch(promoted)
    begun = true
  end
  note({ replid = replid, checked = now })
  return begun
end

-- Until when the caller is granted nothing, which asks for a lease of ttl. One whose recovery is off
-- is granted at once; others wait for as long as any of them wants to. The ttl of the first of them
-- counts as well, where it is longer.
local function quarantined_until(ttl)
  recall()
  local known = string.find(epoch.run, ' ' .. RUN .. ' ', 1, true)
  local begun = false
  if not known or now < epoch.checked or now > epoch.checked + SECOND then
    begun = look_at_server()
  end
  if LONGEST == 0 then
    return 0
  end
  local asked = begun and math.min(ttl, 5 * MINUTE) or 0
  local recovered = epoch.lost + math.max(LONGEST, asked)
  if recovered > epoch.recovered and recovered > now then
    note({ recovered = recovered })
  end
  return epoch.recovered
end

-- Notes those of the long leases that have not ended, but for that of one owner, and one more. Of
-- very many, only the longest.
local function note_long(but, more)
  local kept, latest, longest = {}, 0, 0
  for owner, ends, length in string.gmatch(epoch.long, '(%S+) (%d+) (%d+);') do
    if owner ~= but and now < tonumber(ends) then
      kept[#kept + 1] = owner .. ' ' .. ends .. ' ' .. length .. ';'
      latest = math.max(latest, tonumber(ends))
      longest = math.max(longest, tonumber(length))
    end
  end
  if #kept > 15 then
    kept = { '- ' .. text(latest) .. ' ' .. text(longest) .. ';' }
  end
  note({ long = table.concat(kept) .. more })
end

-- Notes that the owner's lease is to end so much later from now; seldom, for most.
local function foresee(owner, length)
  if length > MINUTE then
    note_long(owner, owner .. ' ' .. text(now + length) .. ' ' .. text(length) .. ';')
  elseif length > epoch.longest or now + length > epoch.ends then
    local ends = math.max(epoch.ends, now + length + 10 * SECOND)
    note({ longest = math.max(length, HANDOFF), ends = ends })
  end
end

-- Notes that nobody in the same case need read the epoch, until it is due to be looked at, for leases
-- of at most this length, which has been foreseen, or for those that are handed over. Fences above
-- "fence" are then above all that may have been forgotten.
local function vouch(length)
  length = length <= MINUTE and math.max(length, HANDOFF) or HANDOFF
  if now < epoch.recovered or now < epoch.level then
    return
  end
  note({
    quiet = math.min(epoch.checked + SECOND, epoch.ends - length),
    quiet_run = RUN,
    quiet_recovery = ARGV[2],
    quiet_length = length,
    fence = math.max(epoch.fence, epoch.recovered - 1),
  })
end

-- Notes that the owner's lease has ended.
local function forget(owner)
  if string.find(epoch.long, owner .. ' ', 1, true) then
    note_long(owner, '')
  end
end

-- How a lease with a limit is written, after BEGINNING: "<owner> <limit> <fence> <since> <until>
-- <confirmed> <run, if it has a stamp> <process> <length of label> <label>".
local PACKED = '^' .. BEGINNING .. '(%S+) (%d+) (%d+) (%d+) (%d+) ([01]) (%w*) (%S*) (%d+) '

-- The key, and the leases that are written, in the order of their fences.
local function read()
  local got = redis.call('HMGET', LOCK,
    'fence', 'owner', 'process', 'until', 'confirmed', 'stamp', 'label', 'since', 'grants', 'asked')
  local lock = {
    fence = tonumber(got[1]) or 0,
    grants = {},
    written = got[2] or '',
    unsaved = false, -- Whether leases with a limit have changed since they were written.
    most = math.huge, -- How many leases there may be, by those that have not ended: see settle.
  }
  if lock.written == ALL then
    local packed, at = got[9], 1
    while at <= #packed do
      local _, last, owner, limit, fence, since, ends, confirmed, run, process, size =
        string.find(packed, PACKED, at)
      at = last + 1 + size
      lock.grants[#lock.grants + 1] = {
        owner = owner,
        limit = tonumber(limit),
        fence = tonumber(fence),
        since = tonumber(since),
        ends = tonumber(ends),
        confirmed = confirmed == '1',
        stamp = run .. ' ' .. ends,
        process = process,
        label = string.sub(packed, last + 1, at - 1),
      }
    end
  elseif lock.written ~= '' then
    lock.grants[1] = {
      owner = got[2],
      limit = 1,
      fence = lock.fence,
      since = tonumber(got[8]),
      ends = tonumber(got[4]),
      confirmed = got[5] == '1',
      stamp = got[6] or '',
      process = got[3],
      label = got[7] or '',
    }
  end
  lock.count = #lock.grants
  local asked = tonumber(got[10]) or 0
  for _, lease in ipairs(lock.grants) do
    lease.asked = lease.fence <= asked
  end
  return lock
end

-- The run of a stamp that tells when the lease ends; nothing if the lease has been renewed since.
local function run_of(lease)
  local run, ends = string.match(lease.stamp, '^(%w*) (%d+)$')
  return run and ends == text(lease.ends) and run or ''
end

-- When others may have what a lease takes. Where its clock was behind ours, it lasts longer than it says.
-- As long as its lock was on the other server it may have been renewed there, also when the others had
-- long ended.
local function freed_at(lease)
  local run = run_of(lease)
  local elsewhere = run ~= '' and run ~= string.match(RUN, '^%w*')
  return lease.ends + ((elsewhere or now < epoch.level) and epoch.ahead or 0)
end

local function lives(lease)
  return now < freed_at(lease)
end

-- The lease of an owner, and which of them it is.
local function lease_of(lock, owner)
  for number, lease in ipairs(lock.grants) do
    if lease.owner == owner then
      return lease, number
    end
  end
end

-- Whether a claim may have a lease beside those that there are.
local function fits(lock, limit)
  return #lock.grants < math.min(limit, lock.most)
end

-- When the last of the leases ends.
local function latest_end(lock)
  local latest = 0
  for _, lease in ipairs(lock.grants) do
    latest = math.max(latest, lease.ends)
  end
  return latest
end

-- Writes leases that have a limit, if they have changed.
local function save(lock)
  if not lock.unsaved then
    return
  end
  local words, soonest = {}, math.huge
  for _, lease in ipairs(lock.grants) do
    soonest = math.min(soonest, lease.ends)
    words[#words + 1] = string.format('%s%s %.0f %.0f %.0f %.0f %s %s %s %d %s',
      BEGINNING, lease.owner, lease.limit, lease.fence, lease.since, lease.ends, lease.confirmed and '1' or '0',
      run_of(lease), lease.process, #lease.label, lease.label)
  end
  local first, latest = lock.grants[1], latest_end(lock)
  write('HSET', LOCK, 'fence', text(lock.fence), 'owner', ALL, 'process', '', 'label', first.label,
    'since', text(first.since), 'until', text(latest), 'confirmed', '1',
    'grants', table.concat(words), 'soonest', text(soonest), 'limits', '1')
  keep(LOCK, latest)
  lock.unsaved = false
end

-- Adds a lease to those that there are, and returns it. An exclusive one is written by the caller; those
-- with a limit are saved later, all at once.
local function add_lease(lock, fence, owner, claim, length, confirmed)
  local lease = {
    owner = owner,
    limit = claim.limit,
    fence = fence,
    since = now,
    ends = now + length,
    confirmed = confirmed,
    stamp = '',
    process = claim.process,
    label = claim.label,
  }
  lock.fence = fence
  lock.grants[#lock.grants + 1] = lease
  lock.most = math.min(lock.most, lease.limit)
  lock.unsaved = lock.unsaved or lease.limit ~= 1
  return lease
end

-- Grants a lease. An essential operation has written before, that the one who gets it waits no longer.
local function grant(lock, owner, claim, length, confirmed)
  local fence = math.max(
    lock.fence + 1, epoch.fence + 1, came_at(claim.ticket), math.min(now, epoch.recovered)
  )
  local lease = add_lease(lock, fence, owner, claim, length, confirmed)
  if lease.limit == 1 then
    put_lease(fence, owner, lease.process, lease.label, length, confirmed)
    keep(LOCK, lease.ends)
  end
  foresee(owner, length)
  return lease
end

-- Ends a lease, without writing it: others may follow at once.
local function free(lock, number)
  forget(table.remove(lock.grants, number).owner)
end

-- Writes that nobody has the key. If nobody waits for it either, only its fence is remembered,
-- together with those of all other keys. A fence that is ahead of this server's clock is remembered by
-- itself until the clock has caught up, so that the fences of other keys need not follow it.
local function put_down(lock)
  if lock.written == '' then
    return
  end
  if redis.call('EXISTS', QUEUE) == 1 then
    write('HSET', LOCK, 'owner', '')
  elseif lock.fence <= now then
    erase('DEL', LOCK)
    if lock.fence > epoch.fence then
      epoch.fence = lock.fence
      write('HSET', EPOCH, 'fence', lock.fence)
    end
  else
    erase('HDEL', LOCK, 'owner', 'process', 'label', 'since', 'until', 'confirmed', 'places',
      'grants', 'soonest', 'limits', 'asked')
    redis.call('PEXPIRE', LOCK, text((lock.fence - now + MINUTE + SECOND) / 1000))
  end
end

local function place_of(owner)
  local packed, limit = unpack(redis.call('HMGET', LOCK, 'place:' .. owner, 'limit:' .. owner))
  if not packed then
    return nil
  end
  local ends, ttl, ticket, careful, process, label =
    string.match(packed, '^(%d+) (%d+) (%d+) ([01]) (%S*) (.*)$')
  return {
    ends = tonumber(ends),
    ttl = tonumber(ttl),
    ticket = tonumber(ticket),
    careful = careful == '1',
    process = process,
    label = label,
    limit = tonumber(limit or '1'),
  }
end

-- How many come before an owner that waits.
local function position_of(owner)
  return redis.call('ZRANK', QUEUE, owner)
end

local function put_place(owner, place)
  place.ends = now + PLACE
  local packed = packed_place(place.ttl, place.ticket, place.process, place.label)
  if place.limit == 1 then
    write('HSET', LOCK, 'place:' .. owner, packed)
  else
    write('HSET', LOCK, 'place:' .. owner, packed, 'limit:' .. owner, text(place.limit), 'limits', '1')
  end
end

-- Queues an owner that has no place yet.
local function queue(lock, owner, place)
  local number = write('HINCRBY', LOCK, 'places', 1)
  write('ZADD', QUEUE, place.ticket > 0 and text(place.ticket) or number, owner)
  put_place(owner, place)
  keep(LOCK, latest_end(lock))
  keep(QUEUE, now)
end

local function drop_place(owner)
  erase('ZREM', QUEUE, owner)
  erase('HDEL', LOCK, 'place:' .. owner, 'limit:' .. owner)
end

local function drop_places(first, last, doomed)
  for _, owner in ipairs(redis.call('ZRANGE', QUEUE, first, last)) do
    local place = place_of(owner)
    if not place or doomed(place) then
      drop_place(owner)
    end
  end
end

-- The first waiter that lives and may have a lease, and its place. Those before it that do not
-- live are gone for good.
local function first_waiter()
  local skipped = 0
  while true do
    local owner = redis.call('ZRANGE', QUEUE, skipped, skipped)[1]
    local place = owner and place_of(owner)
    local lasts = place and now < place.ends
    if lasts and place.careful and now < epoch.recovered then
      skipped = skipped + 1
    elseif not owner or lasts then
      return owner, place
    else
      drop_place(owner)
    end
  end
end

-- Hands leases to the first waiters that may have them, up to one that does not fit. They are as long as
-- a process has to confirm them, and it is rung there.
local function let_in(lock)
  while #lock.grants < lock.most do
    local owner, place = first_waiter()
    if not owner or not fits(lock, place.limit) then
      return
    end
    drop_place(owner)
    local lease = grant(lock, owner, place, math.min(place.ttl, HANDOFF), false)
    redis.call('PUBLISH', place.process, string.format(RING, owner, lease.fence, lease.ends))
  end
end

-- Drops the leases that have ended. A process loses its places that has not confirmed one of them.
local function drop_ended(lock)
  local lasting, silent = {}, {}
  for _, lease in ipairs(lock.grants) do
    if lives(lease) then
      lasting[#lasting + 1] = lease
      lock.most = math.min(lock.most, lease.limit)
    elseif not lease.confirmed then
      silent[lease.process] = true
    end
  end
  lock.unsaved = #lasting > 0 and #lasting < lock.count
  lock.grants = lasting
  return silent
end

-- Drops the leases that have ended, and lets in those who fit now. In a quarantine, there is nobody to
-- let in but those who do not care about it.
local function settle(lock, quarantine)
  local first = lock.grants[1]
  if first and first.limit == 1 and lives(first) then -- Then nobody fits beside it.
    lock.most = 1
    return
  end
  local silent = drop_ended(lock)
  if now >= quarantine then
    if next(silent) then
      drop_places(0, -1, function(place) return silent[place.process] end)
    end
    let_in(lock)
  end
  if #lock.grants == 0 then
    put_down(lock)
  end
  save(lock)
end

local function held(lease)
  -- A sixth word says that the holder was asked to release.
  return { 'held', now, lease.fence, lease.ends, lease.confirmed and 1 or 0, lease.asked and 1 or nil }
end

-- Notes the last fence of those that are asked to release.
local function ask_holders(lock)
  if #lock.grants == 0 then
    return { 'gone', now }
  end
  write('HSET', LOCK, 'asked', text(lock.fence))
  return { 'asked', now }
end

-- When the next lease ends. In a quarantine, the key counts as held by one of those who may have been
-- forgotten.
local function busy_until(lock, quarantine)
  local next_end = #lock.grants > 0 and math.huge or now
  for _, lease in ipairs(lock.grants) do
    next_end = math.min(next_end, freed_at(lease))
  end
  return math.max(quarantine, next_end)
end

-- Why the caller is granted nothing; nothing if that is for others who have the key.
local function recovering(lock, quarantine, limit)
  return now < quarantine and fits(lock, limit) and epoch.why or ''
end

-- What others see of the first holder, and how many others there are: the end of an answer.
local function holder(lock)
  return lock.grants[1] and lock.grants[1].label or '', math.max(0, #lock.grants - 1)
end

local function waiting(lock, quarantine, position, limit)
  local because = recovering(lock, quarantine, limit)
  return { 'waiting', now, position, busy_until(lock, quarantine), because, holder(lock) }
end

-- The heartbeat of one owner: renews its lease, or keeps its place. Leases with a limit are saved later,
-- all at once.
local function refresh(lock, quarantine, owner, ttl)
  local lease = lease_of(lock, owner)
  if lease then
    lease.ends, lease.confirmed = math.max(lease.ends, now + ttl), true
    if lease.limit == 1 then
      write('HSET', LOCK, 'until', text(lease.ends), 'confirmed', '1')
      keep(LOCK, lease.ends)
    else
      lock.unsaved = true
    end
    foresee(owner, lease.ends - now)
    return held(lease)
  end
  -- A place that nobody has kept for a day may have outlived the queue.
  local position = position_of(owner)
  local place = position and place_of(owner)
  if place then
    put_place(owner, place)
    keep(LOCK, latest_end(lock))
    keep(QUEUE, now)
    return waiting(lock, quarantine, position, place.limit)
  end
  return { 'gone', now }
end
