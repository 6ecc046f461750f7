-- uses: counter_stays, counter_of, keep_token
--[[
  raise_token: make the fencing counter of a lock at least a token that another server gave.
  KEYS[1]  token  STRING  last fencing token of the lock
  ARGV[1]  token
  ARGV[2]  retention  ms for which the counter is kept; 0: for ever
  Reply    1 it is at least this token now
]]
local last = counter_of(KEYS[1], redis.call('GET', KEYS[1]) or '0')
if type(last) ~= 'number' then return last end
local token = tonumber(ARGV[1])
if last < token then
  -- The number of a counter that is kept for ever must still show that.
  if counter_stays(last) and not counter_stays(token) then token = token + 1 end
  keep_token(KEYS[1], string.format('%.0f', token), 0, ARGV[2], counter_stays(token))
end
return 1
