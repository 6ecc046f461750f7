-- uses: next_token, keep_token
--[[
  take_token: give a hold that has no fencing token the next one.
  KEYS[1]  lock       HASH    holder -> hold count; of a writer: holder:write
  KEYS[2]  token      STRING  last fencing token of the lock
  ARGV[1]  holder
  ARGV[2]  retention  ms for which the counter is kept; 0: for ever
  Reply    text the token | -3 no such hold
]]
local lock, holder = KEYS[1], ARGV[1]
if redis.call('HEXISTS', lock, holder) == 0 and redis.call('HEXISTS', lock, holder .. ':write') == 0 then return -3 end
local token, stays = next_token(KEYS[2])
if type(token) ~= 'string' then return token end
keep_token(KEYS[2], token, 0, ARGV[2], stays)
return token
