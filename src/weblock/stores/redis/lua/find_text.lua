-- The text that is kept under a key.

return redis.call('HGET', KEYS[1], 'text')
