-- Asks the holders to release the key. Each learns it with its next heartbeat; later ones do not, for their
-- fences are larger.

settle()
if lock.count > 0 then
  lock.asked, changed = lock.fence, true
end
save()
return { lock.count > 0 and 'asked' or 'gone', now }
