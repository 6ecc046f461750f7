-- As `lower`, for a fair lock: a free one is the turn of the head of its queue. 0 takes a holder
-- that only waits out of the queue.
local function fair_lower(
  lock, queue, timeouts, alive, holder, hold_count, lease, channel, publish, token, retention)
  if hold_count ~= '0' then return keep(lock, holder, hold_count, lease) end
  if redis.call('HDEL', lock, holder) == 1 then
    return fair_tell(lock, queue, timeouts, alive, channel, publish, token, retention)
  end
  local left = fair_leave(
    lock, queue, timeouts, alive, holder, channel, publish, token, retention)
  return left and 0 or not_held(lock)
end
