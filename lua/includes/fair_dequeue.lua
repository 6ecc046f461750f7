-- uses: year_ms

-- A waiter whose turn has come, or never will, leaves the queue. If only Redisson's are left, the queue is
-- not to end as one of ours does; a user who may not check that leaves it as it is. Returns how many keys
-- knew the waiter.
local function fair_dequeue(q, waiter)
  -- First: whoever stands in the queue without a score blocks Redisson for ever.
  local known = redis.call('LREM', q.queue, 1, waiter)
  known = known + redis.call('ZREM', q.timeouts, waiter) + redis.call('ZREM', q.alive, waiter)
  if redis.pcall('EXISTS', q.queue, q.alive) == 1 then
    -- A key that is not there stays so.
    redis.call('PEXPIRE', q.timeouts, year_ms)
    redis.call('PEXPIRE', q.queue, year_ms)
  end
  return known
end
