-- uses: token_step

-- Whether a fencing counter stays for ever: Redisson, which adds 1, counts too, or it is ahead of the
-- server's clock, which was set back. All others are multiples of the step, and microseconds since 1970:
-- more than 1e15 since 2001.
local function counter_stays(last)
  return last % token_step ~= 0 or (last > 0 and last < 1e15)
end
