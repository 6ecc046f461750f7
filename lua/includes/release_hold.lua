-- uses: not_held

-- Frees a lock. Returns how many connections received the message, -1 if this holder does not have the lock.
local function release_hold(lock, holder, channel, publish)
  -- The last field takes the key with it.
  if redis.call('HDEL', lock, holder) == 0 then return not_held(lock) end
  -- A user without the right to publish still frees the lock: waiters poll.
  return tonumber(redis.pcall(publish, channel, '0')) or 0
end
