-- Whether there is a note that something has been done.

return redis.call('EXISTS', KEYS[1])
