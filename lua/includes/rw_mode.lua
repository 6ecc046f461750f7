-- uses: must_be_lock

-- The mode of a read-write lock, false if it is free. Fails if the key holds anything else.
local function rw_mode(lock)
  local remaining = redis.call('PTTL', lock)
  if remaining == -2 then return false end
  must_be_lock(lock, remaining)
  return redis.call('HGET', lock, 'mode') or error('WRONGTYPE the key holds no read-write lock', 0)
end
