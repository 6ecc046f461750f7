-- Notifies waiters on the channel that they may look again: all of them by a 1, one by a 0. Returns how many
-- connections received that.
--
-- Redisson's 1 wakes its sleeping waiters. One who was refused and does not sleep yet misses it, and then sleeps for
-- the lease it was told. A 0 is kept for one of those. Written as 00 it is not for ours, who miss nothing. Subscribers
-- at replicas are not counted here; without any others, no 00 is sent.
local function tell(publish, channel, message)
  local receivers = tonumber(redis.pcall(publish, channel, message)) or 0
  if message == '1' and receivers > 0 then redis.pcall(publish, channel, '00') end
  return receivers
end
