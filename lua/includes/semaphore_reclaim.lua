-- Gives the permits whose leases have ended back to the semaphore. Returns how many.
local function semaphore_reclaim(free_key, timeouts, now)
  local ended = redis.call('ZREMRANGEBYSCORE', timeouts, 0, now)
  local free = ended > 0 and redis.pcall('INCRBY', free_key, ended)
  if type(free) == 'table' then
    -- A user without the right to it: as many that have ended stay there, under other names.
    for i = 1, ended do redis.call('ZADD', timeouts, 0, 'ended:' .. i) end
    -- Fails, in the words of the server.
    redis.call('INCRBY', free_key, ended)
  end
  return ended
end
