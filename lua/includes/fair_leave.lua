-- Takes a waiter out of the queue; if it was the head, it is the turn of the new one. True if it was in
-- it.
local function fair_leave(
  lock, queue, timeouts, alive, holder, channel, publish, token, retention)
  local was_head = redis.call('LINDEX', queue, 0) == holder
  local left = fair_pop(queue, timeouts, alive, holder)
  -- Of a lock that is held, it is the turn of the head when that ends.
  if was_head and redis.call('EXISTS', lock) == 0 then
    fair_tell(lock, queue, timeouts, alive, channel, publish, token, retention)
  end
  return left > 0
end
