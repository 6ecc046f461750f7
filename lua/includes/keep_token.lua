-- uses: counter_stays

-- Stores a fencing token, and `more` that are handed out with it. Without another grant the counter goes
-- after `retention` ms (0: never), unless it is one that stays: Redisson would begin with 1 again, and a
-- clock that was set back would give smaller tokens.
local function keep_token(key, token, more, retention)
  local token_step = 64
  local last = token + math.ceil(more / token_step) * token_step
  local text = string.format('%.0f', last)
  if (tonumber(retention) or 0) == 0 or counter_stays(last) then
    redis.call('SET', key, text)
  else
    redis.call('SET', key, text, 'PX', retention)
  end
end
