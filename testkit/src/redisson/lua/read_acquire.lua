--[[
  read_acquire: one more read hold, unless another holder writes.
  KEYS[1]  lock   KEYS[2]  prefix of the keys of this holder's read holds
  ARGV[1]  lease_ms   ARGV[2]  holder
  Reply    nil granted | PTTL if another holder writes
]]
local lock, hold_prefix, lease_ms, holder = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local mode = redis.call('HGET', lock, 'mode')
if not mode then
  redis.call('HSET', lock, 'mode', 'read')
  redis.call('HSET', lock, holder, 1)
  redis.call('SET', hold_prefix .. 1, 1, 'PX', lease_ms)
  redis.call('PEXPIRE', lock, lease_ms)
  return nil
end
if mode == 'read' or redis.call('HEXISTS', lock, holder .. ':write') == 1 then
  local number = redis.call('HINCRBY', lock, holder, 1)
  redis.call('SET', hold_prefix .. number, 1, 'PX', lease_ms)
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), tonumber(lease_ms)))
  return nil
end
return redis.call('PTTL', lock)
