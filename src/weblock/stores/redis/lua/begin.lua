-- Has this run of the server begin, as early as can be.

return { 'begun', now }
