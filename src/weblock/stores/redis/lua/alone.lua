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

-- By which run's clock a lease ends, and when. Only while a slot is half-moved do leases say so.
local function stamp(ends)
  return string.match(RUN, '^%w*') .. ' ' .. text(ends)
end

local function forget_place(owner)
  erase('HDEL', LOCK, 'place:' .. owner, 'limit:' .. owner)
end

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
  for _, lease in ipairs(theirs > 0 and lock.grants or {}) do
    if lease.stamp ~= stamp(lease.ends) then
      lease.ends = lease.ends + now - theirs
      lease.stamp = stamp(lease.ends)
    end
  end
end

-- Grants a lease. An essential operation has written before, as for grant.
local function give(owner, claim, length, confirmed)
  local fence = math.max(lock.fence + 1, epoch.fence + 1, now)
  local lease = add_lease(lock, fence, owner, claim, length, confirmed)
  lease.stamp = stamp(lease.ends)
  if lease.limit == 1 then
    put_lease(fence, owner, lease.process, lease.label, length, confirmed, 'stamp', lease.stamp)
    keep(LOCK, lease.ends)
  end
  return lease
end

local function rank_of(owner)
  for rank, each in ipairs(line) do
    if each == owner then
      return rank
    end
  end
end

local function step_out(rank)
  forget_place(table.remove(line, rank))
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
  keep(LOCK, latest_end(lock))
end

-- The first who waits and may have a lease: its rank and its place. Those before it that do not live
-- are gone.
local function first_in_line()
  local rank = 1
  while rank <= #line do
    local place = place_of(line[rank])
    local lasts = place and now < place.ends
    if lasts and place.careful and now < epoch.recovered then
      rank = rank + 1
    elseif lasts then
      return rank, place
    else
      step_out(rank)
    end
  end
end

-- Hands leases to the first who wait and may have them, up to one that does not fit.
local function let_line_in()
  while #lock.grants < lock.most do
    local rank, place = first_in_line()
    if not rank or not fits(lock, place.limit) then
      return
    end
    local owner = line[rank]
    step_out(rank)
    local lease = give(owner, place, math.min(place.ttl, HANDOFF), false)
    redis.call('PUBLISH', place.process,
      owner .. ' ' .. text(lease.fence) .. ' ' .. text(lease.ends))
  end
end

local function settle_alone()
  local silent = drop_ended(lock)
  if now < quarantine then
    return
  end
  if next(silent) then
    step_out_if(function(place) return silent[place.process] end)
  end
  let_line_in()
end

local function prolong(lease, ttl)
  lease.ends, lease.confirmed = math.max(lease.ends, now + ttl), true
  lease.stamp = stamp(lease.ends)
  if lease.limit == 1 then
    write('HSET', LOCK, 'until', text(lease.ends), 'stamp', lease.stamp, 'confirmed', '1')
    keep(LOCK, lease.ends)
  else
    lock.unsaved = true
  end
  return held(lease)
end

local function beat(owner, ttl)
  local lease = lease_of(lock, owner)
  if lease then
    return prolong(lease, ttl)
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
  keep(LOCK, latest_end(lock))
  return waiting(lock, quarantine, rank - 1, place.limit)
end

-- Writes what has changed of the line and of leases that have a limit, or that nobody has a lease.
local function save_all()
  local line_is = table.concat(line, ' ')
  if line_is ~= line_was then
    write('HSET', LOCK, 'line', line_is)
  end
  if #lock.grants == 0 and lock.written ~= '' then
    write('HSET', LOCK, 'owner', '')
  end
  save(lock)
end

local function acquire(owner, process, label, ttl, room, _, limit)
  ttl, room, limit = tonumber(ttl), tonumber(room), tonumber(limit or '1')
  local claim = { ttl = ttl, ticket = 0, process = process, label = label, limit = limit }
  local function given()
    local lease = give(owner, claim, ttl, true)
    save(lock)
    forget_place(owner) -- It may have waited before the slot began to move.
    return held(lease)
  end

  settle_alone()
  if voided[owner] then
    return { 'gone', now }
  end
  if #lock.grants == 0 and now >= quarantine then
    return given()
  end
  local known = beat(owner, ttl)
  if known[1] ~= 'gone' then
    return known
  end
  if now >= quarantine and fits(lock, limit) and not first_in_line() then
    return given()
  end
  if room > 0 and #line >= room then
    step_out_if(function(place) return now >= place.ends end)
  end
  if #line >= room then
    local because = recovering(lock, quarantine, limit)
    return { 'busy', now, busy_until(lock, quarantine), #line, because, holder(lock) }
  end
  step_in(owner, claim)
  return waiting(lock, quarantine, #line - 1, limit)
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
  local lease, number = lease_of(lock, owner)
  if lease then
    answer = lives(lease) and 'released' or 'gone'
    table.remove(lock.grants, number)
  else
    local rank = rank_of(owner)
    if rank then
      table.remove(line, rank)
    end
    forget_place(owner)
  end
  if tonumber(void) > 0 then
    voided[owner] = text(now + tonumber(void))
    local words = {}
    for each, ends in pairs(voided) do
      words[#words + 1] = each .. ' ' .. ends .. ';'
    end
    write('HSET', LOCK, 'voided', table.concat(words))
    keep(LOCK, math.max(latest_end(lock), now + tonumber(void)))
  end
  settle_alone()
  return { answer, now }
end

local function transfer(owner, heir, process, label, ttl)
  essential = true
  settle_alone()
  local lease = lease_of(lock, heir)
  if voided[heir] or not (lease or lease_of(lock, owner)) then
    return { 'gone', now }
  end
  if not lease then
    lease = lease_of(lock, owner)
    lease.ends = 0
  end
  lease.owner, lease.process, lease.label = heir, process, label
  if lease.limit == 1 then
    write('HSET', LOCK, 'owner', heir, 'process', process, 'label', label)
  end
  return prolong(lease, tonumber(ttl))
end

local function force_release()
  essential = true
  local answer = 'gone'
  for number = #lock.grants, 1, -1 do
    if lives(lock.grants[number]) then
      answer = 'released'
      table.remove(lock.grants, number)
    end
  end
  settle_alone()
  return { answer, now }
end

local function ask_release()
  settle_alone()
  return ask_holders(lock)
end

local function look()
  local places = {}
  for _, owner in ipairs(line) do
    places[#places + 1] = shown_place(owner)
  end
  return shown(lock, places)
end

local operations = {
  acquire = acquire,
  refresh = refresh_all,
  renew = refresh_all,
  release = release,
  transfer = transfer,
  force_release = force_release,
  ask_release = ask_release,
  look = look,
}
recall_line()
local answer = operations[operation](unpack(ARGV, FIRST))
save_all()
return answer
