-- A waiter whose turn has come, or never will, leaves the queue. If only Redisson's are left there, they
-- are not to end with ours; a user who may not look leaves it at that.
local function fair_pop(queue, timeouts, alive, waiter)
  -- First: who stands in the queue without a score blocks Redisson for ever.
  local left = redis.call('LREM', queue, 1, waiter)
  left = left + redis.call('ZREM', timeouts, waiter) + redis.call('ZREM', alive, waiter)
  if redis.pcall('EXISTS', queue, alive) == 1 then
    -- What is not there is not touched.
    redis.call('PEXPIRE', timeouts, 31536000000)
    redis.call('PEXPIRE', queue, 31536000000)
  end
  return left
end
