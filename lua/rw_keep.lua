-- uses: not_held, read_timeout, readers_lease, tell
--[[
  rw_keep: leave a hold of a read-write lock that was given back too early, until its time is over. No
  guard has it any more, so its lease may become shorter, too.
  KEYS[1]  lock          HASH  mode -> read | write, holder -> read holds, holder:write -> write holds
  ARGV[1]  holder
  ARGV[2]  remaining_ms  the lease it has from now
  ARGV[3]  channel       where waiters listen
  ARGV[4]  publish       PUBLISH or SPUBLISH
  Reply    how many connections received that the lock is free sooner than they were told
           -1 not held by this holder
]]
local lock, holder, remaining = KEYS[1], ARGV[1], tonumber(ARGV[2])
local held = redis.call('HMGET', lock, holder, holder .. ':write')
if not held[1] and not held[2] then return not_held(lock) end
local before, lease = redis.call('PTTL', lock), remaining
-- An operator took its lease away.
if before < 0 then before = math.huge end
-- A full server accepts this write, and all later ones after it.
if held[1] then redis.call('PEXPIRE', read_timeout(lock, holder, 1), remaining) end
for hold = 1, tonumber(held[1]) or 0 do
  redis.call('SET', read_timeout(lock, holder, hold), '1', 'PX', remaining)
end
-- Other readers have leases of their own, and the lock lives as long as the longest.
local own_fields = 1 + (held[1] and 1 or 0) + (held[2] and 1 or 0)
if remaining < before and redis.call('HLEN', lock) > own_fields then
  local others = readers_lease(lock, before)
  lease = math.max(remaining, math.min(before, others))
end
if lease < math.huge then redis.call('PEXPIRE', lock, lease) end
-- A waiter of Redisson's sleeps for the lease that it was told. A 1 wakes all of them.
if before <= lease then return 0 end
return tell(ARGV[4], ARGV[3], '1')
