--[[
  rw_force_unlock: free the lock for any holder, if it is in this mode.
  KEYS[1]  lock   KEYS[2]  channel
  ARGV[1]  read | write   ARGV[2]  the message: 0 for read, 1 for write
  Reply    1 it was in this mode | 0 it was not
]]
if redis.call('HGET', KEYS[1], 'mode') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], ARGV[2])
return 1
