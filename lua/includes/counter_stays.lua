-- Whether a fencing counter stays for ever: Redisson, which adds 1, counts too, or it is ahead of the
-- server's clock, which was set back. A counter of ours stands at a multiple of the step, or at one more if
-- it stays; and at microseconds since 1970, which have been more than 1e15 since 2001.
local function counter_stays(last)
  local token_step = 64
  return last % token_step ~= 0 or (last > 0 and last < 1e15)
end
