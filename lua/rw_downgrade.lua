-- uses: not_held, read_timeout, write_ends, tell
--[[
  rw_downgrade: turn a write hold into a read hold.
  KEYS[1]  lock     HASH  mode -> read | write, holder -> read holds, holder:write -> write holds
  KEYS[2]  waiting  ZSET  waiter of ours -> see rw_wait
  ARGV[1]  holder
  ARGV[2]  lease_ms  lease to keep at least
  ARGV[3]  channel   where waiters listen
  ARGV[4]  publish   PUBLISH or SPUBLISH
  Reply    how many connections received the message that others may enter; 0 also if it reads already | -1 not held
]]
local lock, holder = KEYS[1], ARGV[1]
local writer = holder .. ':write'
local held = redis.call('HMGET', lock, holder, writer)
if not held[2] then
  -- A repeat.
  if held[1] then return 0 end
  return not_held(lock)
end
-- The hold keeps its lease, which a renewal under way may have lengthened.
local lease = math.max(redis.call('PTTL', lock), tonumber(ARGV[2]))
-- First, because a full server accepts this write, and after it the others.
redis.call('PEXPIRE', lock, lease)
redis.call('SET', read_timeout(lock, holder, 1), '1', 'PX', lease)
redis.call('HSET', lock, holder, '1', 'mode', 'read')
redis.call('HDEL', lock, writer)
-- A user without the right to note it still lets others in.
pcall(write_ends, KEYS[2])
-- Redisson wakes all its waiters for a 1.
return tell(ARGV[4], ARGV[3], '1')
