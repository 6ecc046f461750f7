-- uses: counter_stays, counter_of, spoilt_counter

-- Returns the next fencing token of a lock: max(last + 1, microseconds of the server's clock), so that tokens grow
-- even after the counter was lost or has expired. A token is below 2^53, hence exact in Lua, and returned as text,
-- because a Lua number of this size would be rounded on its way into a string. Then returns whether the counter
-- stays for ever. The caller stores the token by `keep_token`. Returns an error reply if the counter is spoilt, or has
-- no room for this many `tokens` (default: 1).
local function next_token(key, tokens)
  local time, last = redis.call('TIME'), redis.call('GET', key)
  local now, token_step = time[1] * 1000000 + time[2], 64
  local token, stays = now - now % token_step, false
  if last then
    last = counter_of(key, last)
    if type(last) ~= 'number' then return last end
    -- The number itself shows whether the counter stays. If it is more than a second ahead of the clock, it has to stay
    -- from now on.
    stays = counter_stays(last) or last > now + 1000000
    if stays then token = token + 1 end
    if token <= last then
      token = last + 1
      if not stays then token = token + -token % token_step end
    end
  end
  if token > 9007199254740992 - (tokens or 1) then return spoilt_counter(key) end
  return string.format('%.0f', token), stays
end
