--[[
  lock_release: release once.
  KEYS[1]  lock   KEYS[2]  channel   KEYS[3]  latch
  ARGV[1]  lease_ms of the remaining holds   ARGV[2]  holder   ARGV[3]  latch_ms
  Reply    nil not held by the holder | 0 still held | 1 free now
]]
local lock, channel, latch = KEYS[1], KEYS[2], KEYS[3]
local lease_ms, holder, latch_ms = ARGV[1], ARGV[2], ARGV[3]
local before = answered(latch)
if before then return before end
if redis.call('HEXISTS', lock, holder) == 0 then return nil end
if redis.call('HINCRBY', lock, holder, -1) > 0 then
  redis.call('PEXPIRE', lock, lease_ms)
  remember(latch, 0, latch_ms)
  return 0
end
redis.call('DEL', lock)
redis.call('PUBLISH', channel, 0)
remember(latch, 1, latch_ms)
return 1
