-- uses: not_held, fair_handover, fair_leave

-- As `release_hold`, for a fair lock: a free one is handed over to the head of its queue. A holder that only waits is
-- taken out of the queue.
local function fair_release_hold(q, holder)
  if redis.call('HDEL', q.lock, holder) == 1 then return fair_handover(q) end
  return fair_leave(q, holder) and 0 or not_held(q.lock)
end
