-- uses: keep_hold, not_held, fair_handover, fair_leave

-- As `release_hold`, for a fair lock: a free one is handed over to the head of its queue. 0 takes a holder
-- that only waits out of the queue.
local function fair_release_hold(q, holder, hold_count, lease)
  if hold_count ~= '0' then return keep_hold(q.lock, holder, hold_count, lease) end
  if redis.call('HDEL', q.lock, holder) == 1 then return fair_handover(q) end
  return fair_leave(q, holder) and 0 or not_held(q.lock)
end
