-- What the usual operations write, and all others.

-- When an owner came, as far as its ticket can be believed.
local function came_at(ticket)
  return ticket > 0 and math.max(math.min(ticket, now + AHEAD), now - MINUTE) or now
end

-- Writes a lease, and whatever fields follow. The server writes numbers out in full.
local function put_lease(fence, owner, process, label, length, confirmed, ...)
  redis.call('HSET', LOCK, 'fence', fence, 'owner', owner, 'process', process, 'label', label,
    'since', now, 'until', now + length, 'confirmed', confirmed and '1' or '0', ...)
end

-- What is written of a waiter.
local function packed_place(ttl, ticket, process, label)
  return string.format('%.0f %.0f %.0f %s %s %s', now + PLACE, ttl, ticket,
    LONGEST > 0 and '1' or '0', process, label)
end
