-- Deletes a lock, whoever holds it; false if it was free. HLEN refuses a key that is not a hash, so
-- that a foreign key is never deleted.
local function force_unlock(lock)
  if redis.call('HLEN', lock) == 0 then return false end
  if redis.call('HEXISTS', lock, 'mode') == 1 then
    return false, redis.error_reply('WRONGTYPE the key holds a read-write lock')
  end
  redis.call('DEL', lock)
  return true
end
