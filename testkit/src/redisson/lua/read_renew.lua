--[[
  read_renew: the watchdog's renewal of all read holds that one process has on one lock.
  KEYS[1]  lock   KEYS[2]  prefix of the keys of all read holds
  ARGV[1]  lease_ms, replaces the current lease   ARGV[i+1]  a holder
  Reply    1 at least one holder reads | 0 none
]]
local renewed = 0
for i = 2, #ARGV do
  local holds = redis.call('HGET', KEYS[1], ARGV[i])
  if holds then
    for number = tonumber(holds), 1, -1 do
      redis.call('PEXPIRE', KEYS[2] .. ':' .. ARGV[i] .. ':rwlock_timeout:' .. number, ARGV[1])
    end
    renewed = 1
  end
end
if renewed == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return renewed
