-- Gives the permits whose leases have ended back to the semaphore. Returns how many.
local function semaphore_reclaim(free_key, timeouts, now)
  local ended = redis.call('ZREMRANGEBYSCORE', timeouts, 0, now)
  if ended > 0 then redis.call('INCRBY', free_key, ended) end
  return ended
end
