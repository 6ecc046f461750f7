-- The floor of a semaphore: a number that is counted down, unless it is 0.
if tonumber(redis.call('GET', KEYS[1])) > 0 then return redis.call('DECR', KEYS[1]) end
return -1
