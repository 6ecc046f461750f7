-- uses: count_at
--[[
  latch_init: close an open latch, with a number of count-downs.
  KEYS[1]  latch    STRING  how many count-downs are left; absent while it is open
  KEYS[2]  call     STRING  exists once this call has closed it
  ARGV[1]  count    at least 1
  ARGV[2]  kept_ms  for how long this call is known
  ARGV[3]  channel  where waiters listen
  ARGV[4]  publish  PUBLISH or SPUBLISH
  Reply    1 this call has closed it | 0 it was closed before
]]
local latch = KEYS[1]
if redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
local before = count_at(latch)
if type(before) == 'table' then return before end
-- Redisson leaves a count of 0 or less, which is an open latch.
if before and before > 0 then return 0 end
redis.call('SET', latch, ARGV[1])
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
redis.pcall(ARGV[4], ARGV[3], '1')
return 1
