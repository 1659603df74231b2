-- Asks the holders to release the key. Each learns it with its next heartbeat; later ones do not, for their
-- fences are larger.

settle()
save()
if lock.count == 0 then
  return { 'gone', now }
end
redis.call('HSET', LOCK, 'asked', text(lock.fence))
return { 'asked', now }
