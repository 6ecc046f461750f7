-- uses: counter_stays

-- The next fencing token of a lock: max(last + 1, microseconds of the server's clock), so that it grows
-- even after the counter was lost, or has gone. It is below 2^53, hence exact in Lua, and returned as
-- text, as a Lua number of this size would be rounded on its way into a string. Then whether the counter
-- stays for ever. `keep_token` stores it. `known` is what a client knows the counter to have had, if it
-- was one of ours and that client raises it by plain commands too.
local function next_token(key, known)
  local time, last = redis.call('TIME'), redis.call('GET', key)
  local now, token_step = time[1] * 1000000 + time[2], 64
  local token, stays = now - now % token_step, false
  if last then
    last = tonumber(last)
    if not last then return redis.error_reply('WRONGTYPE the fencing counter is not a number') end
    -- It was lost in between, and such a command began with 0: for a lock that was held, maybe.
    if known and last % token_step == 0 then last = math.max(last, tonumber(known)) end
    -- The number itself tells a counter that stays from one that goes. More than a second ahead of the
    -- clock, it has to stay from now on.
    stays = counter_stays(last) or last > now + 1000000
    if stays then token = token + 1 end
    if token <= last then
      token = last + 1
      if not stays then token = token + -token % token_step end
    end
  end
  return string.format('%.0f', token), stays
end
