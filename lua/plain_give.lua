-- uses: count_at
--[[
  plain_give: add permits to a semaphore: new ones, or ones that another holder took.
  KEYS[1]  permits  STRING  how many are available
  KEYS[2]  call     STRING  exists once this call has added them
  ARGV[1]  count
  ARGV[2]  kept_ms  for how long this call is known
  ARGV[3]  channel  where waiters listen
  ARGV[4]  publish  PUBLISH or SPUBLISH
  Reply    1 added | 0 there is no such semaphore
]]
local permits = KEYS[1]
if redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
local available = count_at(permits)
if type(available) == 'table' then return available end
if not available then return 0 end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
available = redis.call('INCRBY', permits, ARGV[1])
-- Redisson's listeners fail on a negative number.
if available > 0 then redis.pcall(ARGV[4], ARGV[3], tostring(available)) end
return 1
