-- uses: fair_dequeue, fair_handover, fair_wake

-- Removes the place of a waiter; if it was the head, the new head gets its turn. True if it had one.
local function fair_leave(q, holder)
  local was_head = redis.call('LINDEX', q.queue, 0) == holder
  local left = fair_dequeue(q.queue, q.timeouts, q.alive, holder)
  -- While the lock is held, it becomes the turn of the head when that ends.
  local lease = was_head and redis.call('PTTL', q.lock)
  if lease == -2 then fair_handover(q) end
  -- The longest time after which a waiter asks by itself. A hold that is left ends sooner than the others were told.
  local poll_ms_max = 1000
  if lease and lease >= 0 and lease < poll_ms_max then fair_wake(q) end
  return left > 0
end
