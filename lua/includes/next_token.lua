-- The next fencing token of a lock: max(last + 1, microseconds of the server's clock), so that it
-- grows even after the counter was lost, or has gone. Below 2^53, hence exact in Lua; returned as text,
-- as a Lua number of this size would be rounded on its way into a string. To be stored with
-- `keep_token`.
local function next_token(key)
  local now = redis.call('TIME')
  now = tonumber(now[1]) * 1000000 + tonumber(now[2])
  local last = redis.call('GET', key) or 0
  last = tonumber(last)
  if not last then return redis.error_reply('WRONGTYPE the fencing counter is not a number') end
  -- Which of the counters that go and those that stay it is, the number tells: a multiple of 64, or one
  -- more.
  local stays = counter_stays(last) or last > now + 1000000
  local token = now - now % 64 + (stays and 1 or 0)
  if token <= last then
    token = last + 1
    if not stays then token = token + -token % 64 end
  end
  return string.format('%.0f', token)
end
