-- uses: counter_stays

-- The next fencing token of a lock: max(last + 1, microseconds of the server's clock), so that it grows
-- even after the counter was lost, or has gone. It is below 2^53, hence exact in Lua, and returned as
-- text, as a Lua number of this size would be rounded on its way into a string. `keep_token` stores it.
local function next_token(key)
  local now = redis.call('TIME')
  now = tonumber(now[1]) * 1000000 + tonumber(now[2])
  local last = redis.call('GET', key) or 0
  last = tonumber(last)
  if not last then return redis.error_reply('WRONGTYPE the fencing counter is not a number') end
  -- The number itself tells a counter that stays from one that goes. More than a second ahead of the
  -- clock, it has to stay from now on.
  local token_step = 64
  local stays = counter_stays(last) or last > now + 1000000
  local token = now - now % token_step + (stays and 1 or 0)
  if token <= last then
    token = last + 1
    if not stays then token = token + -token % token_step end
  end
  return string.format('%.0f', token)
end
