-- Whether a fencing counter stays for ever: Redisson, which adds 1 to it, counts too, or it is ahead of
-- the server's clock, which was set back. All others are multiples of 64, and microseconds since 1970.
local function counter_stays(last)
  return last % 64 ~= 0 or (last > 0 and last < 1e15)
end
