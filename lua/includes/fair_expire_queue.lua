-- Gives a queue an end, so that places of dead clients go even without further calls for the lock: an hour after the
-- last call, if all places belong to lockset. Redisson's waiters may sleep for as long as they were told to, so a queue
-- with one of those is kept for a year, or has no end, as Redisson made it. Only one with less than half of that left
-- gets a new end: most calls write nothing.
local function fair_expire_queue(queue, timeouts, alive, length, scores)
  local hour_ms, year_ms = 3600 * 1000, 365 * 24 * 3600 * 1000
  local left, life = redis.call('PTTL', queue), nil
  -- Scores without a place count as Redisson's: no score may end before its place.
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
