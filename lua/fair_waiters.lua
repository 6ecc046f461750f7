--[[
  fair_waiters: who waits for the lock, the next one first.
  KEYS[1]  queue  LIST  waiters, the next one first
  Reply    {waiter, ...}
]]
return redis.call('LRANGE', KEYS[1], 0, -1)
