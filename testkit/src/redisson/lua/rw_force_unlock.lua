--[[
  rw_force_unlock: free the lock, whoever holds it, if it is held this way.
  KEYS[1]  lock   KEYS[2]  channel
  ARGV[1]  read | write   ARGV[2]  the message: 0 for read, 1 for write
  Reply    1 it was held this way | 0 it was not
]]
if redis.call('HGET', KEYS[1], 'mode') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], ARGV[2])
return 1
