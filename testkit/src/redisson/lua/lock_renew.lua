--[[
  lock_renew: one batch of the watchdog; also for fair locks and write holds.
  KEYS[i]    lock
  ARGV[1]    lease_ms, replaces the current lease   ARGV[i+1]  its holder
  Reply      for each lock, 1 renewed | 0 not held by that holder
]]
local renewed = {}
for i, lock in ipairs(KEYS) do
  renewed[i] = redis.call('HEXISTS', lock, ARGV[i + 1])
  if renewed[i] == 1 then redis.call('PEXPIRE', lock, ARGV[1]) end
end
return renewed
