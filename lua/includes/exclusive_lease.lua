-- uses: must_be_lock

-- Returns the remaining lease of a lock with one holder, -2 if it is free. Fails if the key holds anything else.
local function exclusive_lease(lock)
  local remaining = redis.call('PTTL', lock)
  if remaining == -2 then return -2 end
  must_be_lock(lock, remaining)
  if redis.call('HEXISTS', lock, 'mode') == 1 then
    error('WRONGTYPE the key holds a read-write lock', 0)
  end
  return remaining
end
