--[[
  read_release: one read hold less. The lock lasts as long as the longest remaining read hold.
  KEYS[1]  lock   KEYS[2]  channel   KEYS[3]  latch
  KEYS[4]  prefix of the keys of this holder's read holds   KEYS[5]  prefix for all holders
  ARGV[1]  holder   ARGV[2]  latch_ms
  Reply    nil not held by the holder | 0 still held | 1 free now
]]
local lock, channel, latch, hold_prefix, all_prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local holder, latch_ms = ARGV[1], ARGV[2]
local before = answered(latch)
if before then return before end
local mode = redis.call('HGET', lock, 'mode')
if not mode then
  redis.call('PUBLISH', channel, 0)
  remember(latch, 1, latch_ms)
  return nil
end
if redis.call('HEXISTS', lock, holder) == 0 then return nil end
local left = redis.call('HINCRBY', lock, holder, -1)
if left == 0 then redis.call('HDEL', lock, holder) end
redis.call('DEL', hold_prefix .. (left + 1))

if redis.call('HLEN', lock) > 1 then
  local longest = -2
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    for i = tonumber(redis.call('HGET', lock, field)) or 0, 1, -1 do
      local key = all_prefix .. ':' .. field .. ':rwlock_timeout:' .. i
      longest = math.max(longest, redis.call('PTTL', key))
    end
  end
  if longest > 0 then redis.call('PEXPIRE', lock, longest) end
  if longest > 0 or mode == 'write' then
    remember(latch, 0, latch_ms)
    return 0
  end
end
-- Holds whose keys are gone count as dead.
redis.call('DEL', lock)
redis.call('PUBLISH', channel, 0)
remember(latch, 1, latch_ms)
return 1
