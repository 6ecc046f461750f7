-- uses: exclusive_lease
--[[
  reentrant_force_unlock: end the hold of any holder, or of this holder.
  KEYS[1]  lock     HASH  holder -> hold count, one field while held
  ARGV[1]  channel  where waiters listen
  ARGV[2]  publish  PUBLISH or SPUBLISH
  ARGV[3]  holder   the only holder whose hold is ended; none: any holder
  Reply    1 it was held and is free now | 0 it was free, or not held by this holder
]]
-- Fails, before anything is written, if the key holds something else: a holder's name may be anything.
if exclusive_lease(KEYS[1]) == -2 then return 0 end
if ARGV[3] and redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall(ARGV[2], ARGV[1], '0')
return 1
