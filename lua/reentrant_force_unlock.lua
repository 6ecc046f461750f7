-- uses: exclusive_lease
--[[
  reentrant_force_unlock: free the lock, whoever holds it.
  KEYS[1]  lock     HASH  holder -> hold count, one field while held
  ARGV[1]  channel  where waiters listen
  ARGV[2]  publish  PUBLISH or SPUBLISH
  Reply    1 it was held and is free now | 0 it was free
]]
if exclusive_lease(KEYS[1]) == -2 then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall(ARGV[2], ARGV[1], '0')
return 1
