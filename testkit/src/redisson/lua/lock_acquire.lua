--[[
  lock_acquire: acquire a free lock, or re-enter it. Always sets the lease, even to a shorter one.
  KEYS[1]  lock
  ARGV[1]  lease_ms   ARGV[2]  holder
  Reply    nil granted | PTTL held by another
]]
local lock, lease_ms, holder = KEYS[1], ARGV[1], ARGV[2]
if redis.call('EXISTS', lock) == 1 and redis.call('HEXISTS', lock, holder) == 0 then
  return redis.call('PTTL', lock)
end
redis.call('HINCRBY', lock, holder, 1)
redis.call('PEXPIRE', lock, lease_ms)
return nil
