--[[
  fair_force_unlock: free the lock for any holder.
  KEYS[1]  lock   KEYS[2]  queue LIST   KEYS[3]  deadlines ZSET   KEYS[4]  channel
  ARGV[1]  the client's time, epoch ms
  Reply    1 it was held | 0 it was free
]]
local lock, queue, deadlines, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
evict_stale(queue, deadlines, tonumber(ARGV[1]))
if redis.call('DEL', lock) == 0 then return 0 end
tell_head(queue, channel)
return 1
