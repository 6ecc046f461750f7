-- uses: exclusive_lease
--[[
  reentrant_inspect: the holder of the lock, its hold count, and its remaining lease.
  KEYS[1]  lock  HASH  holder -> hold count, one field while held
  Reply    {} free | {holder, hold_count, remaining_ms}
]]
local remaining = exclusive_lease(KEYS[1])
if remaining == -2 then return {} end
local fields = redis.call('HGETALL', KEYS[1])
return { fields[1], fields[2], remaining }
