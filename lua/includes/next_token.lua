-- The next fencing token of a lock: max(last + 1, microseconds of the server's clock), so that it
-- grows even after the counter was lost. Below 2^53, hence exact in Lua; returned as text, as a
-- Lua number of this size would be rounded on its way into a string. To be stored with SET.
local function next_token(key)
  local now = redis.call('TIME')
  local token = tonumber(now[1]) * 1000000 + tonumber(now[2])
  local last = redis.call('GET', key) or 0
  last = tonumber(last)
  if not last then return redis.error_reply('WRONGTYPE the fencing counter is not a number') end
  if last >= token then token = last + 1 end
  return string.format('%.0f', token)
end
