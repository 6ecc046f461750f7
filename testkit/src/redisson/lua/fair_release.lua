--[[
  fair_release: release once. Releasing a free lock succeeds for any caller.
  KEYS[1]  lock   KEYS[2]  queue LIST   KEYS[3]  deadlines ZSET   KEYS[4]  channel   KEYS[5]  latch
  ARGV[1]  lease_ms of the remaining holds   ARGV[2]  holder   ARGV[3]  latch_ms   ARGV[4]  the client's time
  Reply    nil held by another | 0 still held | 1 free now
]]
local lock, queue, deadlines, channel, latch = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local lease_ms, holder, latch_ms, now = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local before = answered(latch)
if before then return before end
evict_stale(queue, deadlines, now)
if redis.call('EXISTS', lock) == 1 then
  if redis.call('HEXISTS', lock, holder) == 0 then return nil end
  if redis.call('HINCRBY', lock, holder, -1) > 0 then
    redis.call('PEXPIRE', lock, lease_ms)
    remember(latch, 0, latch_ms)
    return 0
  end
  redis.call('DEL', lock)
end
remember(latch, 1, latch_ms)
tell_head(queue, channel)
return 1
