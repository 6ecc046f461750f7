-- Removes waiters whose turn has come, or never will, from the queue. If only waiters of Redisson are left, the queue
-- gets the long life of a queue of Redisson's. A user who may not check that leaves its life as it is. Returns how many
-- entries were removed.
local function fair_dequeue(queue, timeouts, alive, ...)
  local known = 0
  -- Remove the places first: a waiter in the queue without a score blocks Redisson for ever.
  for _, waiter in ipairs({ ... }) do known = known + redis.call('LREM', queue, 1, waiter) end
  known = known + redis.call('ZREM', timeouts, ...) + redis.call('ZREM', alive, ...)
  if redis.pcall('EXISTS', queue, alive) == 1 and redis.pcall('EXISTS', queue) == 1 then
    -- PEXPIRE does not create a key.
    local year_ms = 365 * 24 * 3600 * 1000
    redis.call('PEXPIRE', timeouts, year_ms)
    redis.call('PEXPIRE', queue, year_ms)
  end
  return known
end
