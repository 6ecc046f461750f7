--[[
  write_acquire: the first or one more write hold. A reader is refused, even the only one.
  KEYS[1]  lock
  ARGV[1]  lease_ms   ARGV[2]  the holder as a writer
  Reply    nil granted | PTTL held by another
]]
local lock, lease_ms, holder = KEYS[1], ARGV[1], ARGV[2]
local mode = redis.call('HGET', lock, 'mode')
if not mode then
  redis.call('HSET', lock, 'mode', 'write')
  redis.call('HSET', lock, holder, 1)
  redis.call('PEXPIRE', lock, lease_ms)
  return nil
end
if mode == 'write' and redis.call('HEXISTS', lock, holder) == 1 then
  redis.call('HINCRBY', lock, holder, 1)
  -- A re-entry adds the leases.
  redis.call('PEXPIRE', lock, redis.call('PTTL', lock) + tonumber(lease_ms))
  return nil
end
return redis.call('PTTL', lock)
