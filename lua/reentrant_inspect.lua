--[[
  reentrant_inspect: who holds the lock, how often, and for how long still.
  KEYS[1]  lock  HASH  holder -> hold count, one field while held
  Reply    {} free | {holder, hold_count, remaining_ms}
]]
local fields = redis.call('HGETALL', KEYS[1])
if #fields == 0 then return {} end
return {fields[1], fields[2], redis.call('PTTL', KEYS[1])}
