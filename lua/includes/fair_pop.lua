-- The head of the queue leaves it.
local function fair_pop(queue, timeouts, alive, head)
  redis.call('LPOP', queue)
  redis.call('ZREM', timeouts, head)
  redis.call('ZREM', alive, head)
end
