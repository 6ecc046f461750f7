--[[
  reentrant_release: lower a holder's hold count to a given number; 0 frees the lock.
  KEYS[1]  lock        HASH  holder -> hold count, one field while held
  ARGV[1]  holder
  ARGV[2]  hold_count  the count to leave
  ARGV[3]  lease_ms    lease to keep at least, if the count is not 0
  ARGV[4]  channel     where waiters listen
  ARGV[5]  publish     PUBLISH or SPUBLISH
  Reply    {1, receivers} done, and how many connections were told of a free lock (-1: none asked)
           {0} this holder does not hold the lock
]]
local lock, holder, hold_count = KEYS[1], ARGV[1], ARGV[2]
if hold_count == '0' then
  -- The last field takes the key with it.
  if redis.call('HDEL', lock, holder) == 0 then return {0} end
  -- A user without the right to publish still frees the lock: waiters poll.
  local receivers = redis.pcall(ARGV[5], ARGV[4], '0')
  if type(receivers) ~= 'number' then receivers = -1 end
  return {1, receivers}
end
if redis.call('HEXISTS', lock, holder) == 0 then return {0} end
raise_lease(lock, ARGV[3], redis.call('PTTL', lock))
redis.call('HSET', lock, holder, hold_count)
return {1, -1}
