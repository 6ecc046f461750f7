--[[
  leader_resign: remove the value of a leader that leads no longer.
  KEYS[1]  leader   HASH  id, token, value and version of the last proclamation
  ARGV[1]  holder
  ARGV[2]  token    the fencing token of the leader
  ARGV[3]  channel  where observers listen
  ARGV[4]  publish  PUBLISH or SPUBLISH
  Reply    1 it is removed | 0 there is no value, or that of another leader
]]
local known = redis.call('HMGET', KEYS[1], 'id', 'token')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall(ARGV[4], ARGV[3], ARGV[2])
return 1
