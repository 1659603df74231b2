-- Has this run of the server take over from whatever ran here before, as early as can be.

return { 'recovering', now, quarantined_until(0) }
