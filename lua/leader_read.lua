--[[
  leader_read: the leader, and the value that it proclaimed last.
  KEYS[1]  lock    HASH  holder -> hold count, one field while held
  KEYS[2]  leader  HASH  id, token, value and version of the last proclamation
  Reply    {id, token, value} | an empty list: there is no leader, or it has proclaimed nothing yet
]]
local known = redis.call('HMGET', KEYS[2], 'id', 'token', 'value')
-- The values of a dead leader stay for a while, but are not returned.
if not known[1] or redis.call('HEXISTS', KEYS[1], known[1]) == 0 then return {} end
return known
