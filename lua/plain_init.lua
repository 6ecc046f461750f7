-- uses: count_at
--[[
  plain_init: make a semaphore with a number of permits, unless it exists.
  KEYS[1]  permits  STRING  how many are available
  KEYS[2]  call     STRING  exists once this call has made it
  KEYS[3]  holds    HASH    holder -> how many it took; only ours
  ARGV[1]  count
  ARGV[2]  kept_ms  for how long this call is known
  ARGV[3]  channel  where waiters listen
  ARGV[4]  publish  PUBLISH or SPUBLISH
  Reply    1 this call has made it | 0 it existed before
]]
if redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
local available = count_at(KEYS[1])
if type(available) == 'table' then return available end
if available then return 0 end
-- These permits belong to a semaphore that is gone, and must not be returned to the new one.
redis.call('DEL', KEYS[3])
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
redis.pcall(ARGV[4], ARGV[3], ARGV[1])
return 1
