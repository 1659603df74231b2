-- Takes the leases away from all holders, and passes the key on.

local answer, ended = 'gone', {}
for _, lease in ipairs(all_leases()) do
  if lives(lease) then
    answer = 'released'
    drop('lease:' .. lease.owner)
  else
    ended[#ended + 1] = lease
  end
end
add_up(ended)
settle()
save()
return { answer, now }
