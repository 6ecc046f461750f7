-- Notifies waiters on the channel: all of them by a 1, one of them by a 0. Returns how many connections received the
-- message.
--
-- A 1 wakes the sleeping waiters of Redisson. A waiter that was refused but does not sleep yet misses the 1, and then
-- sleeps for the lease that it was told. Redisson keeps a 0 for such a waiter. It is written as 00, which our waiters,
-- who miss nothing, ignore. Subscribers at replicas are not counted here. Without any others, no 00 is sent.
local function tell(publish, channel, message)
  local receivers = tonumber(redis.pcall(publish, channel, message)) or 0
  if message == '1' and receivers > 0 then redis.pcall(publish, channel, '00') end
  return receivers
end
