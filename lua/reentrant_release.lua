--[[
  reentrant_release: lower a holder's hold count to a given number; 0 frees the lock.
  KEYS[1]  lock        HASH  holder -> hold count, one field while held
  ARGV[1]  holder
  ARGV[2]  hold_count  the count to leave
  ARGV[3]  lease_ms    lease to keep at least, if the count is not 0
  ARGV[4]  channel     where waiters listen
  ARGV[5]  publish     PUBLISH or SPUBLISH
  Reply    how many connections were told that the lock is free | -1 not held by this holder
]]
local lock, holder, hold_count = KEYS[1], ARGV[1], ARGV[2]
if hold_count == '0' then
  -- The last field takes the key with it.
  if redis.call('HDEL', lock, holder) == 0 then return -1 end
  -- A user without the right to publish still frees the lock: waiters poll.
  local told = redis.pcall(ARGV[5], ARGV[4], '0')
  return tonumber(told) or 0
end
if redis.call('HEXISTS', lock, holder) == 0 then return -1 end
-- First: it is a write that a full server accepts, and after it the other one too.
redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), tonumber(ARGV[3])))
redis.call('HSET', lock, holder, hold_count)
return 0
