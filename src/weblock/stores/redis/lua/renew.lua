-- Heartbeats of holders, any number of them: each renews its lease, and no more. None shortens a lease,
-- and none brings back one that has ended. It can run with LOCK alone.

local early = not AWAY and now < epoch.lost and epoch.recovery > 0 and redis.call('HGET', EPOCH, 'renews') ~= '1'
if not AWAY and lock.run ~= RUN and lock.count > 0 then
  drop_ended()
end

local answers = {}
for i = 4, #ARGV, 2 do
  local lease = lease_of(ARGV[i])
  if not lease or not lives(lease) then
    answers[#answers + 1] = { 'gone', now }
  elseif early then
    answers[#answers + 1] = { 'unknown', now, why() }
  else
    answers[#answers + 1] = renewed(lease, tonumber(ARGV[i + 1]))
  end
end
save()
return answers
