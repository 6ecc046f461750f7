--[[
  write_release: one write hold less. Remaining read holds turn the lock into a read lock.
  KEYS[1]  lock   KEYS[2]  channel   KEYS[3]  latch
  ARGV[1]  lease_ms of the remaining holds   ARGV[2]  the holder as a writer   ARGV[3]  latch_ms
  Reply    nil not held by the holder | 0 still held for writing | 1 no longer held for writing
]]
local lock, channel, latch = KEYS[1], KEYS[2], KEYS[3]
local lease_ms, holder, latch_ms = ARGV[1], ARGV[2], ARGV[3]
local before = answered(latch)
if before then return before end
local mode = redis.call('HGET', lock, 'mode')
if not mode then
  redis.call('PUBLISH', channel, 1)
  remember(latch, 1, latch_ms)
  return nil
end
if mode == 'read' or redis.call('HEXISTS', lock, holder) == 0 then return nil end
if redis.call('HINCRBY', lock, holder, -1) > 0 then
  redis.call('PEXPIRE', lock, lease_ms)
  remember(latch, 0, latch_ms)
  return 0
end
redis.call('HDEL', lock, holder)
if redis.call('HLEN', lock) == 1 then
  redis.call('DEL', lock)
  redis.call('PUBLISH', channel, 1)
else
  -- Other readers could enter now, but get no message.
  redis.call('HSET', lock, 'mode', 'read')
end
remember(latch, 1, latch_ms)
return 1
