-- Adds the permits whose leases have ended to the free ones. Returns their number.
local function semaphore_reclaim(free_key, timeouts, now)
  local ended = redis.call('ZREMRANGEBYSCORE', timeouts, 0, now)
  local free = ended > 0 and redis.pcall('INCRBY', free_key, ended)
  if type(free) == 'table' then
    -- The user lacks the right to INCRBY. As many ended permits stay there, under other names.
    for i = 1, ended do redis.call('ZADD', timeouts, 0, 'ended:' .. i) end
    -- Fails with the server's own error.
    redis.call('INCRBY', free_key, ended)
  end
  return ended
end
