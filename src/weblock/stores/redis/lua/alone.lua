-- One lock without its queue and its epoch: what a cluster's server can do while it hands the slot
-- to another. Each key is on one of the two then, so a script may touch just one.
--
-- The lease is in LOCK, and LOCK is on one server at a time: where it is decides, and a lock that is
-- on neither is made on the one that takes over, never on the other. Those who wait stand in LOCK
-- too: "line" names them in their order, and each has its place as ever. What the epoch says has just
-- been asked of it. Owners who gave up are in "voided": "<owner> <until>;" for each.
--
-- The end of a lease that was granted by the other server's clock is translated into ours. "stamp" says
-- whose clock it was: without one, it is that of the server from which the slot moves.

local operation, theirs = ARGV[4], tonumber(ARGV[5])
local quarantine = now + tonumber(ARGV[6])
epoch = {
  recovered = now + tonumber(ARGV[7]),
  fence = tonumber(ARGV[8]),
  ahead = tonumber(ARGV[9]),
  level = now + 1,
  why = ARGV[10],
}
local FIRST = 11 -- Of the words of the operation.
local lock = read()
local line, voided, line_was = {}, {}, ''

local function recall_line()
  local got = redis.call('HMGET', LOCK, 'line', 'voided')
  line_was = got[1] or ''
  for owner in string.gmatch(line_was, '%S+') do
    line[#line + 1] = owner
  end
  for owner, ends in string.gmatch(got[2] or '', '(%S+) (%d+);') do
    if now < tonumber(ends) then
      voided[owner] = ends
    end
  end
  -- Their clock has gone on since it was read, so this is a little later than right.
  if theirs > 0 and lock.owner ~= '' and lock.stamp ~= stamp(lock.ends) then
    lock.ends = lock.ends + now - theirs
  end
end

local function give(owner, process, label, length, confirmed)
  lock.fence = math.max(lock.fence + 1, epoch.fence + 1, now)
  lock.owner, lock.process, lock.ends, lock.confirmed = owner, process, now + length, confirmed
  lock.label = label
  write('HSET', LOCK, 'fence', text(lock.fence), 'owner', owner, 'process', process,
    'label', label, 'since', text(now), 'until', text(lock.ends), 'stamp', stamp(lock.ends),
    'confirmed', confirmed and '1' or '0')
  keep(LOCK, lock.ends)
end

local function rank_of(owner)
  for rank, each in ipairs(line) do
    if each == owner then
      return rank
    end
  end
end

local function step_out(rank)
  local owner = table.remove(line, rank)
  erase('HDEL', LOCK, 'place:' .. owner)
  return owner
end

local function step_out_if(gone)
  for rank = #line, 1, -1 do
    local place = place_of(line[rank])
    if not place or gone(place) then
      step_out(rank)
    end
  end
end

local function step_in(owner, place)
  line[#line + 1] = owner
  put_place(owner, place)
  keep(LOCK, lock.ends)
end

-- Hands the lease to the first who waits and may have it. Those before it that do not live are gone.
local function hand_over()
  local rank = 1
  while rank <= #line do
    local place = place_of(line[rank])
    local lasts = place and now < place.ends
    if lasts and place.careful and now < epoch.recovered then
      rank = rank + 1
    else
      local owner = step_out(rank)
      if lasts then
        give(owner, place.process, place.label, math.min(place.ttl, HANDOFF), false)
        redis.call('PUBLISH', place.process,
          owner .. ' ' .. text(lock.fence) .. ' ' .. text(lock.ends))
        return
      end
    end
  end
  lock.owner = ''
end

local function settle_alone()
  if lives(lock) then
    return
  end
  if now < quarantine then
    lock.owner = ''
    return
  end
  if lock.owner ~= '' and not lock.confirmed then
    local silent = lock.process
    step_out_if(function(place) return place.process == silent end)
  end
  hand_over()
end

local function beat(owner, ttl)
  if lock.owner == owner then
    lock.ends, lock.confirmed = math.max(lock.ends, now + ttl), true
    write('HSET', LOCK, 'until', text(lock.ends), 'stamp', stamp(lock.ends), 'confirmed', '1')
    keep(LOCK, lock.ends)
    return held(lock)
  end
  local place, rank = place_of(owner), rank_of(owner)
  if not place then
    return { 'gone', now }
  end
  if not rank then -- It waited before the slot began to move.
    line[#line + 1] = owner
    rank = #line
  end
  put_place(owner, place)
  keep(LOCK, lock.ends)
  return waiting(lock, quarantine, rank - 1)
end

-- Writes what has changed of the line, and that nobody has the lease.
local function save()
  local line_is = table.concat(line, ' ')
  if line_is ~= line_was then
    write('HSET', LOCK, 'line', line_is)
  end
  if lock.owner == '' and lock.written ~= '' then
    write('HSET', LOCK, 'owner', '')
  end
end

local function acquire(owner, process, label, ttl, room)
  ttl, room = tonumber(ttl), tonumber(room)
  settle_alone()
  if voided[owner] then
    return { 'gone', now }
  end
  if lock.owner == '' and now >= quarantine then
    give(owner, process, label, ttl, true)
    erase('HDEL', LOCK, 'place:' .. owner) -- It may have waited before the slot began to move.
    return held(lock)
  end
  local known = beat(owner, ttl)
  if known[1] ~= 'gone' then
    return known
  end
  if room > 0 and #line >= room then
    step_out_if(function(place) return now >= place.ends end)
  end
  if #line >= room then
    local because = recovering(lock, quarantine)
    return { 'busy', now, busy_until(lock, quarantine), #line, because, holder(lock) }
  end
  step_in(owner, { ttl = ttl, ticket = 0, process = process, label = label })
  return waiting(lock, quarantine, #line - 1)
end

local function refresh_all(...)
  essential = true
  settle_alone()
  local beats, answers = { ... }, {}
  for i = 1, #beats, 2 do
    answers[#answers + 1] = beat(beats[i], tonumber(beats[i + 1]))
  end
  return answers
end

local function release(owner, void)
  essential = true
  local answer = 'gone'
  if lock.owner == owner then
    answer = lives(lock) and 'released' or 'gone'
    lock.owner = ''
  else
    local rank = rank_of(owner)
    if rank then
      step_out(rank)
    end
    erase('HDEL', LOCK, 'place:' .. owner)
  end
  if tonumber(void) > 0 then
    voided[owner] = text(now + tonumber(void))
    local words = {}
    for each, ends in pairs(voided) do
      words[#words + 1] = each .. ' ' .. ends .. ';'
    end
    write('HSET', LOCK, 'voided', table.concat(words))
    keep(LOCK, math.max(lock.ends, now + tonumber(void)))
  end
  settle_alone()
  return { answer, now }
end

local function transfer(owner, heir, process, label, ttl)
  essential = true
  settle_alone()
  if voided[heir] or (lock.owner ~= heir and lock.owner ~= owner) then
    return { 'gone', now }
  end
  if lock.owner ~= heir then
    lock.ends = 0
  end
  lock.owner = heir
  write('HSET', LOCK, 'owner', heir, 'process', process, 'label', label)
  return beat(heir, tonumber(ttl))
end

local function force_release()
  essential = true
  local answer = lives(lock) and 'released' or 'gone'
  if answer == 'released' then
    lock.owner = ''
  end
  settle_alone()
  return { answer, now }
end

local function look()
  local places = {}
  for _, owner in ipairs(line) do
    places[#places + 1] = { owner, redis.call('HGET', LOCK, 'place:' .. owner) }
  end
  local lease = redis.call('HMGET', LOCK,
    'fence', 'owner', 'process', 'label', 'since', 'until', 'confirmed')
  if lease[6] then
    lease[6] = text(lock.ends)
  end
  return { now, lease, places }
end

local operations = {
  acquire = acquire,
  refresh = refresh_all,
  release = release,
  transfer = transfer,
  force_release = force_release,
  look = look,
}
recall_line()
local answer = operations[operation](unpack(ARGV, FIRST))
save()
return answer
