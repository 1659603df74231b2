-- Asks the holders to release the key. Each learns it with its next heartbeat; later ones do not, for their
-- fences are larger.

local quarantine = quarantined_until(0)
local lock = read()
settle(lock, quarantine)
return ask_holders(lock)
