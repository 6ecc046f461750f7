-- uses: count_at, open_latch
--[[
  latch_delete: open a latch, no matter how many count-downs are left.
  KEYS[1]  latch      STRING  how many count-downs are left; absent while it is open
  KEYS[2]  opened     STRING  the call that opened it last
  KEYS[3]  done       STRING  exists once this call has opened it
  ARGV[1]  call       an id of this call
  ARGV[2]  opened_ms  for how long waiters can see that it was open
  ARGV[3]  channel    where waiters listen
  ARGV[4]  publish    PUBLISH or SPUBLISH
  Reply    1 this call has opened it | 0 it was open before
]]
-- A repeat does not open a latch that was closed again since.
if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
local count = count_at(KEYS[1])
if type(count) == 'table' then return count end
if not count then return 0 end
-- Redisson leaves a count of 0 or less, which is an open latch.
if count <= 0 then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[3], '1', 'PX', ARGV[2])
open_latch(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return 1
