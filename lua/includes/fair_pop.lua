-- A waiter whose turn has come, or never will, leaves the queue.
local function fair_pop(queue, timeouts, alive, waiter)
  redis.call('LREM', queue, 1, waiter)
  redis.call('ZREM', timeouts, waiter)
  redis.call('ZREM', alive, waiter)
end
