--[[
  leader_resign: remove what a leader said, which leads no longer.
  KEYS[1]  leader   HASH  id, token, value and version of what the leader said last
  ARGV[1]  holder
  ARGV[2]  token    the fencing token of the leader
  ARGV[3]  channel  where observers listen
  ARGV[4]  publish  PUBLISH or SPUBLISH
  Reply    1 it is removed | 0 another leader has said something since, or nobody has
]]
local known = redis.call('HMGET', KEYS[1], 'id', 'token')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall(ARGV[4], ARGV[3], ARGV[2])
return 1
