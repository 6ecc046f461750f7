-- uses: fair_dequeue, fair_handover

-- A waiter gives up its place; if it was the head, it is the turn of the new one. True if it had one.
local function fair_leave(q, holder)
  local was_head = redis.call('LINDEX', q.queue, 0) == holder
  local left = fair_dequeue(q.queue, q.timeouts, q.alive, holder)
  -- While the lock is held, it becomes the turn of the head when that ends.
  if was_head and redis.call('EXISTS', q.lock) == 0 then fair_handover(q) end
  return left > 0
end
