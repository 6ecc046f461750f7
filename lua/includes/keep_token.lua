-- Stores a fencing token, and sets `more` tokens aside with it. Without another grant the counter expires after
-- `retention` ms (0: never). A counter that `stays` never expires: Redisson would begin with 1 again, and a clock that
-- was set back would give smaller tokens.
local function keep_token(key, token, more, retention, stays)
  local token_step = 64
  if more > 0 then
    token = string.format('%.0f', token + math.ceil(more / token_step) * token_step)
  end
  if stays or not retention or retention == '0' then
    redis.call('SET', key, token)
  else
    redis.call('SET', key, token, 'PX', retention)
  end
end
