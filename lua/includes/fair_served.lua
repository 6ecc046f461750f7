-- The head of the queue was granted the lock.
local function fair_served(queue, timeouts, alive, holder)
  redis.call('LPOP', queue)
  redis.call('ZREM', timeouts, holder)
  redis.call('ZREM', alive, holder)
end
