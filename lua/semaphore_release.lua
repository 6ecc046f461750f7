-- uses: count_at
--[[
  semaphore_release: return permits, and leave the queue.
  KEYS[1]  free      STRING  permits that are free
  KEYS[2]  timeouts  ZSET    permit -> server ms until which it is taken
  KEYS[3]  queue     ZSET    waiter of ours -> when it came; only with a waiter
  KEYS[4]  alive     ZSET    waiter of ours -> server ms until which its place is kept; only then
  ARGV[1]  channel   where waiters listen
  ARGV[2]  publish   PUBLISH or SPUBLISH
  ARGV[3]  waiter    the waiter that leaves the queue; empty: none
  ARGV[i]  ids       from 4 on, the permits, if any
  Reply    {removed, receivers}  how many permits were taken, and how many connections received the message about them
]]
local free_key, timeouts, removed, receivers = KEYS[1], KEYS[2], 0, 0
-- Before the first write, because the key may hold something else.
local count = count_at(free_key)
if type(count) == 'table' then return count end
for i = 4, #ARGV do removed = removed + redis.call('ZREM', timeouts, ARGV[i]) end
local free = nil
-- A semaphore that was deleted is not made again.
if removed > 0 and count then
  free = redis.pcall('INCRBY', free_key, removed)
  if type(free) == 'table' then
    -- The user lacks the right to INCRBY: as many permits stay there, as ended ones, for the next acquire.
    for i = 4, 3 + removed do redis.call('ZADD', timeouts, 0, ARGV[i]) end
    return free
  end
end
if ARGV[3] ~= '' and redis.call('ZREM', KEYS[3], ARGV[3]) == 1 then
  redis.call('ZREM', KEYS[4], ARGV[3])
  free = free or count
end
if free and free > 0 then receivers = tonumber(redis.pcall(ARGV[2], ARGV[1], free)) or 0 end
return {removed, receivers}
