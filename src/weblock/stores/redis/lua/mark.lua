-- Notes for so many milliseconds, or for good, that something has been done. 0 takes the note away.

local MARK, keep = KEYS[1], ARGV[4]

if keep == 'for good' then
  redis.call('SET', MARK, '1')
elseif keep == '0' then
  redis.call('DEL', MARK)
else
  redis.call('SET', MARK, '1', 'PX', keep)
end
return 'noted'
