-- uses: not_held, fair_dequeue, fair_handover, fair_leave, fair_wake

-- As `release_hold`, for a fair lock: the freed lock is handed over to the head of its queue. A holder that only waits
-- is removed from the queue.
--
-- The further arguments are waiters that had the lock in turn under this hold, by hand-offs in their client, so their
-- places are used. If the hold was gone, the server may since have made one of them the holder, without its client
-- knowing.
local function fair_release_hold(q, holder, ...)
  if redis.call('HDEL', q.lock, holder) == 1 then
    -- A user without the right to change the queue has still freed the lock.
    if ... then pcall(fair_dequeue, q.queue, q.timeouts, q.alive, ...) end
    return fair_handover(q)
  end
  for _, used in ipairs({ ... }) do
    if redis.call('HDEL', q.lock, used) == 1 then fair_handover(q) else fair_leave(q, used) end
  end
  if fair_leave(q, holder) then return 0 end
  -- The lease of the hold has ended. Wake the first waiter, which may know only the lease of an earlier holder.
  if redis.call('PTTL', q.lock) == -2 then fair_wake(q) end
  return not_held(q.lock)
end
