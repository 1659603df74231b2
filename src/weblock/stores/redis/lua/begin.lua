-- Has this run of the server take over from whatever ran here before, as early as can be; and tells
-- what alone.lua must know of the epoch, of which it can have no sight. Times are from now on. What is
-- given are owners that may be granted leases there, and how long.

EPOCH = EPOCH or KEYS[1]
local asked = 0
for i = 5, #ARGV, 2 do
  asked = math.max(asked, tonumber(ARGV[i]))
end
local quarantine = quarantined_until(asked)
for i = 4, #ARGV, 2 do
  foresee(ARGV[i], tonumber(ARGV[i + 1]))
end
local ahead = now < epoch.level and epoch.ahead or 0
return { 'recovering', now, quarantine, text(quarantine - now), text(epoch.recovered - now),
  text(epoch.fence), text(ahead), epoch.why }
