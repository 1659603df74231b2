-- What every operation shares; the text of the operation follows. The meaning of each is that of
-- the pure function of the same name in _core/table.py.
--
-- LOCK   a hash: the last fence, the lease (owner, process, label, since, until, confirmed), the
--        number of the last place, and for each waiter
--        "place:<owner>": "<until> <ttl> <ticket> <process> <label>"
-- QUEUE  a sorted set: the waiters' owners, by their ticket, or by the number of their place
-- EPOCH  a hash: the server's run that grants here, since when, and the longest ttl seen
--
-- Times are microseconds of the server's clock, and relative times are given: no client's clock
-- counts. A lease's end stands in its value; the keys themselves expire a day later, as garbage.
--
-- A ticket is what several servers agree by, of whom a majority grants: the microsecond at which the
-- owner came, by its own clock. It orders the queue, and fences start above it. 0 is none.

local LOCK, QUEUE, EPOCH = KEYS[1], KEYS[2], KEYS[3]
local RUN, LONGEST, PEERS = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local DAY = 86400000
local AHEAD = 1000000 -- By how much a client's clock is believed that is ahead of ours.
local SWITCH = 2000000 -- Until all who talk to a master have heard that it was replaced.

-- Once, for the clock may move while a script runs.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- Lua would write large numbers as 1.79e+15.
local function text(number)
  return string.format('%.0f', number)
end

-- Has a key expire a day after what it says has ended.
local function keep(key, ends)
  redis.call('PEXPIRE', key, text(DAY + math.max(0, ends - now) / 1000))
end

local function counted(section, name)
  return tonumber(string.match(redis.call('INFO', section), name .. ':(%-?%d+)') or '0')
end

-- A server whose memory is full refuses a script's first write if it may need memory, and allows
-- what comes after. What ends or renews a lease must work there, so this goes before it: a write
-- that needs none, and changes nothing.
local function despite_full_memory()
  redis.call('HDEL', LOCK, '')
end

-- Whether this server was a replica once: then its last master's last writes may be missing.
local function promoted()
  return counted('replication', 'second_repl_offset') > 0
end

-- Whether it may ever have been emptied, other than by a restart.
local function emptied()
  local commands = redis.call('INFO', 'commandstats')
  for _, name in ipairs({ 'flushall', 'flushdb', 'swapdb', 'config|resetstat' }) do
    if string.find(commands, 'cmdstat_' .. name .. ':calls=[1-9]') then
      return true
    end
  end
  return false
end

-- The delayed restart of the Redlock algorithm, by itself: a server that may have lost leases
-- grants nothing until the longest of them has ended.
local function begin_epoch(run, longest)
  local quarantine = math.max(0, longest - counted('server', 'uptime_in_seconds') * 1000000)
  if LONGEST == 0 or (run and string.find(PEERS, run, 1, true)) then
    quarantine = 0 -- Not wanted; or the keys have moved here from a master that lives.
  elseif promoted() then
    quarantine = longest + SWITCH
  elseif emptied() then
    quarantine = longest
  end
  redis.call('HSET', EPOCH, 'run', RUN, 'until', text(now + quarantine), 'longest', text(longest))
  return now + quarantine
end

-- Until when nothing is granted here, for leases of up to ttl to come.
local function quarantined_until(ttl)
  local epoch = redis.call('HMGET', EPOCH, 'run', 'until', 'longest')
  local longest = math.max(ttl, LONGEST, tonumber(epoch[3]) or 0)
  if epoch[1] ~= RUN then
    return begin_epoch(epoch[1], longest)
  end
  if longest > tonumber(epoch[3]) then
    redis.call('HSET', EPOCH, 'longest', text(longest))
  end
  return tonumber(epoch[2])
end

-- What is known of the lock; fences from before the server has recovered may not be.
local function read(recovered)
  local got = redis.call('HMGET', LOCK, 'fence', 'owner', 'process', 'until', 'confirmed')
  return {
    fence = tonumber(got[1]) or 0,
    owner = got[2] or '',
    written = got[2] or '',
    process = got[3],
    ends = tonumber(got[4]) or 0,
    confirmed = got[5] == '1',
    recovered = recovered,
  }
end

local function grant(lock, owner, ticket, process, label, length, confirmed)
  local came = ticket > 0 and math.min(ticket, now + AHEAD) or now
  lock.fence = math.max(lock.fence + 1, came, lock.recovered)
  lock.owner, lock.process, lock.ends, lock.confirmed = owner, process, now + length, confirmed
  redis.call('HSET', LOCK, 'fence', text(lock.fence), 'owner', owner, 'process', process,
    'label', label, 'since', text(now), 'until', text(lock.ends), 'confirmed', confirmed and '1' or '0')
  keep(LOCK, lock.ends)
end

local function free(lock)
  lock.owner = ''
  if lock.written ~= '' then
    redis.call('HSET', LOCK, 'owner', '')
  end
end

local function place_of(owner)
  local packed = redis.call('HGET', LOCK, 'place:' .. owner)
  if not packed then
    return nil
  end
  local ends, ttl, ticket, process, label = string.match(packed, '^(%d+) (%d+) (%d+) (%S*) (.*)$')
  return {
    ends = tonumber(ends),
    ttl = tonumber(ttl),
    ticket = tonumber(ticket),
    process = process,
    label = label,
  }
end

-- How many come before an owner that waits.
local function position_of(owner)
  return redis.call('ZRANK', QUEUE, owner)
end

local function put_place(owner, place)
  place.ends = now + PLACE
  local numbers = { text(place.ends), text(place.ttl), text(place.ticket) }
  redis.call('HSET', LOCK, 'place:' .. owner,
    table.concat(numbers, ' ') .. ' ' .. place.process .. ' ' .. place.label)
end

-- Queues an owner that has no place yet.
local function queue(lock, owner, place)
  local rank = place.ticket > 0 and text(place.ticket) or redis.call('HINCRBY', LOCK, 'places', 1)
  redis.call('ZADD', QUEUE, rank, owner)
  put_place(owner, place)
  keep(LOCK, lock.ends)
  keep(QUEUE, now)
end

local function drop_place(owner)
  redis.call('ZREM', QUEUE, owner)
  redis.call('HDEL', LOCK, 'place:' .. owner)
end

local function drop_places(doomed)
  for _, owner in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
    local place = place_of(owner)
    if not place or doomed(place) then
      drop_place(owner)
    end
  end
end

-- Hands the lease to the first waiter that lives, for as long as its process has to confirm it,
-- and rings there.
local function pass_on(lock)
  while true do
    local owner = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    if not owner then
      break
    end
    local place = place_of(owner)
    drop_place(owner)
    if place and now < place.ends then
      local length = math.min(place.ttl, HANDOFF)
      grant(lock, owner, place.ticket, place.process, place.label, length, false)
      redis.call('PUBLISH', place.process,
        owner .. ' ' .. text(lock.fence) .. ' ' .. text(lock.ends))
      return
    end
  end
  free(lock)
end

-- Passes the key on if its lease has ended.
local function settle(lock, quarantine)
  if lock.owner ~= '' and now < lock.ends then
    return
  end
  if now < quarantine then
    return free(lock)
  end
  if lock.owner ~= '' and not lock.confirmed then
    local silent = lock.process
    drop_places(function(place) return place.process == silent end)
  end
  pass_on(lock)
end

local function holds(lock, owner)
  return lock.owner == owner
end

local function held(lock)
  return { 'held', now, text(lock.fence), lock.ends, lock.confirmed and 1 or 0 }
end

-- In a quarantine, the key counts as held by one of those who may have been forgotten.
local function busy_until(lock, quarantine)
  return math.max(quarantine, lock.owner ~= '' and lock.ends or now)
end

local function waiting(lock, quarantine, position)
  return { 'waiting', now, position, busy_until(lock, quarantine) }
end

-- The heartbeat of one owner: renews its lease, or keeps its place.
local function refresh(lock, quarantine, owner, ttl)
  if holds(lock, owner) then
    lock.ends, lock.confirmed = math.max(lock.ends, now + ttl), true
    redis.call('HSET', LOCK, 'until', text(lock.ends), 'confirmed', '1')
    keep(LOCK, lock.ends)
    return held(lock)
  end
  -- A place that nobody has kept for a day may have outlived the queue.
  local position = position_of(owner)
  local place = position and place_of(owner)
  if place then
    put_place(owner, place)
    keep(LOCK, lock.ends)
    keep(QUEUE, now)
    return waiting(lock, quarantine, position)
  end
  return { 'gone', now }
end
