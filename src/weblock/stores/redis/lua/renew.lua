-- Leases with a limit that last: each is renewed where it stands among the others, which are not taken
-- apart, so that a heartbeat costs about the same however many hold the key. As long as no lease has
-- ended, and the first waiter has not lapsed, there is nobody to let in. Whatever else there is falls
-- through.

local function renewed_in_place()
  local got = redis.call('HMGET', LOCK, 'owner', 'grants', 'soonest', 'until', 'asked')
  if got[1] ~= ALL or now >= (tonumber(got[3]) or 0) then
    return nil
  end
  local first = redis.call('ZRANGE', QUEUE, 0, 0)[1]
  local place = first and redis.call('HGET', LOCK, 'place:' .. first) or ''
  if first and now >= (tonumber(string.match(place, '^%d+')) or 0) then
    return nil
  end

  local packed, latest, asked, answers = got[2], tonumber(got[4]), tonumber(got[5]) or 0, {}
  for i = 4, #ARGV, 2 do
    local ttl = tonumber(ARGV[i + 1])
    local at = string.find(packed, BEGINNING .. ARGV[i] .. ' ', 1, true)
    -- Not one whose end another server's clock has told.
    local _, last, before, fence, ends =
      string.find(packed, '^(%S+ %d+ (%d+) %d+ )(%d+) [01]  ', at or #packed + 1)
    if not last or ttl > tonumber(told[4]) then
      return nil
    end
    ends = math.max(tonumber(ends), now + ttl)
    latest = math.max(latest, ends)
    packed = string.format('%s%s%.0f 1  %s',
      string.sub(packed, 1, at - 1), before, ends, string.sub(packed, last + 1))
    answers[#answers + 1] = { 'held', now, tonumber(fence), ends, 1, tonumber(fence) <= asked and 1 or nil }
  end

  redis.call('HDEL', LOCK, '') -- This needs no memory, so that the next may: see essential in the prelude.
  redis.call('HSET', LOCK, 'grants', packed, 'until', latest)
  redis.call('PEXPIRE', LOCK, string.format('%.0f', DAY + (latest - now) / 1000))
  return answers
end

local renewed = quiet and renewed_in_place()
if renewed then
  return renewed
end
