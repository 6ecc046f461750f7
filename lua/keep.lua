-- uses: not_held
--[[
  keep: leave a hold that was released early until its time is over, under a new holder id, which no guard has. The
  lease may become shorter. For locks with one holder.
  KEYS[1]  lock          HASH  holder -> hold count, one field while held
  KEYS[2]  queue         LIST  waiters, the next one first; only of a fair lock
  ARGV[1]  holder
  ARGV[2]  kept_as       the holder id of the hold from now on
  ARGV[3]  remaining_ms  its lease from now
  ARGV[4]  channel       where waiters listen; of a fair lock, before :waiter
  ARGV[5]  publish       PUBLISH or SPUBLISH
  Reply    how many connections received the message that the lock will be free sooner than they were told; 0 also
           for a repeat | -1 not held by this holder
]]
local lock, kept_as, remaining, channel = KEYS[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if redis.call('HEXISTS', lock, ARGV[1]) == 0 then
  -- A repeat.
  if redis.call('HEXISTS', lock, kept_as) == 1 then return 0 end
  return not_held(lock)
end
local before = redis.call('PTTL', lock)
-- There is no lease: an operator removed it.
if before < 0 then before = math.huge end
-- A full server accepts this write, and all later ones after it.
redis.call('PEXPIRE', lock, remaining)
redis.call('HSET', lock, kept_as, '1')
redis.call('HDEL', lock, ARGV[1])
-- The longest time between two requests of a waiter of ours. Until its next request, the first waiter in a queue may
-- know only the lease of an earlier holder.
local poll_ms_max = 1000
-- If the lease has become shorter, waiters are notified: a waiter of Redisson sleeps for the lease that it was told.
if before <= remaining and not (KEYS[2] and remaining < poll_ms_max) then return 0 end
if KEYS[2] then
  local next_one = redis.pcall('LINDEX', KEYS[2], 0)
  if type(next_one) ~= 'string' then return 0 end
  channel = channel .. ':' .. next_one
end
return tonumber(redis.pcall(ARGV[5], channel, '0')) or 0
