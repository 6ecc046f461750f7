--[[
  raise_token: make the fencing counter of a lock at least a token that another server gave.
  KEYS[1]  token  STRING  last fencing token of the lock
  ARGV[1]  token
  Reply    1 it is at least this token now
]]
local last = tonumber(redis.call('GET', KEYS[1]) or 0)
if not last then return redis.error_reply('WRONGTYPE the fencing counter is not a number') end
-- As text: a Lua number of this size would be rounded on its way into a string.
if last < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return 1
