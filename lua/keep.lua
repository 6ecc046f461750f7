-- uses: not_held
--[[
  keep: leave a hold of a lock of one holder that was released too early until its time is over, under a
  holder id of its own. No guard has that one, so the lease may become shorter, too.
  KEYS[1]  lock          HASH  holder -> hold count, one field while held
  KEYS[2]  queue         LIST  waiters, the next one first; only of a fair lock
  ARGV[1]  holder
  ARGV[2]  kept_as       the holder id it has from now on
  ARGV[3]  remaining_ms  the lease it has from now
  ARGV[4]  channel       where waiters listen; of a fair lock, before :waiter
  ARGV[5]  publish       PUBLISH or SPUBLISH
  Reply    how many connections received that the lock is free sooner than they were told; 0 also if it was left
           before | -1 not held by this holder
]]
local lock, kept_as, remaining, channel = KEYS[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if redis.call('HEXISTS', lock, ARGV[1]) == 0 then
  -- A repeat.
  if redis.call('HEXISTS', lock, kept_as) == 1 then return 0 end
  return not_held(lock)
end
local before = redis.call('PTTL', lock)
-- An operator took its lease away.
if before < 0 then before = math.huge end
-- A full server accepts this write, and all later ones after it.
redis.call('PEXPIRE', lock, remaining)
redis.call('HSET', lock, kept_as, '1')
redis.call('HDEL', lock, ARGV[1])
-- The longest time after which a waiter of ours asks by itself. Until then the next one in a queue may know only of
-- the lease of an earlier holder.
local poll_ms_max = 1000
-- A waiter of Redisson's sleeps for the lease that it was told.
if before <= remaining and not (KEYS[2] and remaining < poll_ms_max) then return 0 end
if KEYS[2] then
  local next_one = redis.pcall('LINDEX', KEYS[2], 0)
  if type(next_one) ~= 'string' then return 0 end
  channel = channel .. ':' .. next_one
end
return tonumber(redis.pcall(ARGV[5], channel, '0')) or 0
