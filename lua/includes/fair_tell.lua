-- Tells the head of a free fair lock that it is its turn. Says how many connections heard it.
local function fair_tell(queue, timeouts, alive, channel, publish)
  local head = fair_head(queue, timeouts, alive)
  if not head then return 0 end
  -- A user without the right to publish still frees the lock: waiters poll.
  return tonumber(redis.pcall(publish, channel .. ':' .. head, '0')) or 0
end
