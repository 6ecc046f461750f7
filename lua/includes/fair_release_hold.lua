-- uses: not_held, fair_dequeue, fair_handover, fair_leave, fair_wake

-- As `release_hold`, for a fair lock: a free one is handed over to the head of its queue. A holder that only waits is
-- taken out of the queue.
--
-- The waiters that follow had the lock in turn under this hold, handed on in their client, so their places are used.
-- If the hold was gone, the server may have made one of them the holder since, and nobody knows of that.
local function fair_release_hold(q, holder, ...)
  if redis.call('HDEL', q.lock, holder) == 1 then
    -- A user without the right to it has still freed the lock.
    if ... then pcall(fair_dequeue, q.queue, q.timeouts, q.alive, ...) end
    return fair_handover(q)
  end
  for _, used in ipairs({ ... }) do
    if redis.call('HDEL', q.lock, used) == 1 then fair_handover(q) else fair_leave(q, used) end
  end
  if fair_leave(q, holder) then return 0 end
  -- Its lease has ended. The first waiter may only know the lease of an earlier holder, so wake it.
  if redis.call('PTTL', q.lock) == -2 then fair_wake(q) end
  return not_held(q.lock)
end
