--[[
  lock_force_unlock: free the lock for any holder.
  KEYS[1]  lock   KEYS[2]  channel
  Reply    1 it was held | 0 it was free
]]
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('PUBLISH', KEYS[2], 0)
return 1
