-- Gives a queue a lease, so that places of dead clients go even without further calls for the lock. If all places
-- belong to lockset, the queue ends an hour after the last call. Redisson's waiters may sleep until their scores, so a
-- queue with one of them is kept for a year, or has no lease if Redisson gave it none. The lease is set again only if
-- less than half of it is left, so most calls write nothing.
local function fair_expire_queue(queue, timeouts, alive, length, scores)
  local hour_ms, year_ms = 3600 * 1000, 365 * 24 * 3600 * 1000
  local left, life = redis.call('PTTL', queue), nil
  -- Scores without a place count as Redisson's, because no score may end before its place.
  if redis.call('ZCARD', alive) < length or scores > length then
    if left >= 0 and left < year_ms / 2 then life = year_ms end
  elseif left < hour_ms / 2 then
    life = hour_ms
  end
  if life then
    redis.call('PEXPIRE', timeouts, life)
    redis.call('PEXPIRE', queue, life)
  end
end
