-- uses: not_held, read_timeout, readers_lease, tell
--[[
  rw_keep: leave a hold of a read-write lock that was released early until its time is over, under a new holder id,
  which no guard has. The lease may become shorter.
  KEYS[1]  lock          HASH  mode -> read | write, holder -> read holds, holder:write -> write holds
  ARGV[1]  holder
  ARGV[2]  kept_as       the holder id of the hold from now on
  ARGV[3]  remaining_ms  its lease from now
  ARGV[4]  channel       where waiters listen
  ARGV[5]  publish       PUBLISH or SPUBLISH
  Reply    how many connections received the message that the lock will be free sooner than they were told; 0 also
           for a repeat | -1 not held by this holder
]]
local lock, holder, kept_as, remaining = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local held = redis.call('HMGET', lock, holder, holder .. ':write', kept_as, kept_as .. ':write')
if not held[1] and not held[2] then
  -- A repeat.
  if held[3] or held[4] then return 0 end
  return not_held(lock)
end
local before, lease = redis.call('PTTL', lock), remaining
-- There is no lease: an operator removed it.
if before < 0 then before = math.huge end
if held[2] then
  -- A full server accepts this write, and all later ones after it.
  redis.call('PEXPIRE', lock, remaining)
  redis.call('HSET', lock, kept_as .. ':write', '1')
  redis.call('HDEL', lock, holder .. ':write', holder)
end
-- While its slot is moved, a node refuses a key that it does not have: here, before the first write.
if not held[2] then redis.call('EXISTS', read_timeout(lock, kept_as, 1)) end
-- A writer that also reads is left as a writer.
if held[1] then redis.call('DEL', read_timeout(lock, holder, 1)) end
if not held[2] then
  redis.call('SET', read_timeout(lock, kept_as, 1), '1', 'PX', remaining)
  redis.call('HSET', lock, kept_as, '1')
  redis.call('HDEL', lock, holder)
  -- Other readers have leases of their own, and the lock has the longest of them.
  local own_fields = 2
  if remaining < before and redis.call('HLEN', lock) > own_fields then
    local others = readers_lease(lock, before)
    lease = math.max(remaining, math.min(before, others))
  end
  if lease < math.huge then redis.call('PEXPIRE', lock, lease) end
end
-- If the lease has become shorter, waiters are notified: a waiter of Redisson sleeps for the lease that it was told. A
-- 1 wakes all of them.
if before <= lease then return 0 end
return tell(ARGV[5], ARGV[4], '1')
