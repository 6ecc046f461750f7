-- uses: fair_dequeue, fair_handover, fair_wake

-- Removes the place of a waiter. If the waiter was the head, the new head gets its turn. Returns true if there was a
-- place.
local function fair_leave(q, holder)
  local was_head = redis.call('LINDEX', q.queue, 0) == holder
  local left = fair_dequeue(q.queue, q.timeouts, q.alive, holder)
  -- While the lock is held, the turn of the new head comes with the end of that hold.
  local lease = was_head and redis.call('PTTL', q.lock)
  if lease == -2 then fair_handover(q) end
  -- The longest time between two requests of a waiter of ours. A kept hold may end sooner than the new head was told.
  local poll_ms_max = 1000
  if lease and lease >= 0 and lease < poll_ms_max then fair_wake(q) end
  return left > 0
end
