-- Tells the head of a free fair lock that it is its turn. Says how many connections heard it.
local function fair_tell(queue, timeouts, alive, channel, publish)
  -- A user without a right to the queue or to publish still frees the lock: waiters poll.
  local looked, head = pcall(fair_head, queue, timeouts, alive)
  if not looked or not head then return 0 end
  return tonumber(redis.pcall(publish, channel .. ':' .. head, '0')) or 0
end
