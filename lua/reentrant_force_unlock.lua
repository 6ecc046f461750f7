--[[
  reentrant_force_unlock: free the lock, whoever holds it.
  KEYS[1]  lock     HASH  holder -> hold count, one field while held
  ARGV[1]  channel  where waiters listen
  ARGV[2]  publish  PUBLISH or SPUBLISH
  Reply    1 it was held and is free now | 0 it was free
]]
-- HLEN refuses a key that is not a hash, so that a foreign key is never deleted.
if redis.call('HLEN', KEYS[1]) == 0 then return 0 end
if redis.call('HEXISTS', KEYS[1], 'mode') == 1 then
  return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
redis.call('DEL', KEYS[1])
redis.pcall(ARGV[2], ARGV[1], '0')
return 1
