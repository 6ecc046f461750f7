-- Takes a waiter out of the queue; if it was the head, the new one is told. True if it was in it.
local function fair_leave(lock, queue, timeouts, alive, holder, channel, publish)
  local was_head = redis.call('LINDEX', queue, 0) == holder
  -- First: who stands in the queue without a score blocks Redisson for ever.
  local left = redis.call('LREM', queue, 1, holder)
  left = left + redis.call('ZREM', timeouts, holder) + redis.call('ZREM', alive, holder)
  -- Of a lock that is held, the head is told when that ends.
  if was_head and redis.call('EXISTS', lock) == 0 then
    fair_tell(queue, timeouts, alive, channel, publish)
  end
  return left > 0
end
