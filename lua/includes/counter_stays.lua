-- Whether a fencing counter is kept for ever, because Redisson, which adds 1, counts too, or because the counter is
-- ahead of the server's clock, which was set back. A counter of ours is a multiple of the step, or one more if it is
-- kept for ever. It counts microseconds since 1970, which have been more than 1e15 since 2001.
local function counter_stays(last)
  local token_step = 64
  return last % token_step ~= 0 or (last > 0 and last < 1e15)
end
