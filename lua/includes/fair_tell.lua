-- Hands a fair lock that was just freed to the head of its queue, or tells that one that it is its
-- turn. Says how many connections heard it.
local function fair_tell(lock, queue, timeouts, alive, channel, publish, token)
  -- A user without a right to the queue or to publish still frees the lock: waiters poll.
  local looked, head, _, place, now = pcall(fair_head, queue, timeouts, alive)
  if not looked or not head then return 0 end
  local its_channel = channel .. ':' .. head
  if place then
    local given, heard = pcall(fair_give,
      lock, queue, timeouts, alive, head, place, now, its_channel, publish, token)
    if given and heard then return heard end
  end
  return tonumber(redis.pcall(publish, its_channel, '0')) or 0
end
