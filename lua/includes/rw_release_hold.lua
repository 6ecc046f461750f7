-- uses: not_held, rw_wait_over, read_timeout, readers_lease, write_ends

-- Ends a hold on a read-write lock, or removes a holder that only waits. Returns the reply of the release, -1 if there
-- is neither a hold nor a waiter, and the message to send if others may enter now. If the reply is nil, the caller
-- replies with the number of receivers of that message. Callers that have looked pass `held`, the values of the
-- holder's two fields, and `fields`, the number of all fields.
--
-- 1. Look at the holder's fields. If it has none, it may be waiting: end the wait.
-- 2. Count the fields of others, and note the holder's own read leases before they are deleted.
-- 3. If others stay, the lock gets the longest lease of the living readers. These leases are read only if the leaving
--    holder may have had the longest. A lock with about the right lease keeps it. Otherwise waiters are notified.
-- 4. If no reader is alive, delete the lock.
-- 5. Note the end of a writer, and notify waiters.
local function rw_release_hold(lock, waiting, holder, held, fields)
  local writer = holder .. ':write'
  held = held or redis.call('HMGET', lock, holder, writer)
  local was_reader, was_writer = held[1], held[2]
  -- Only a reader of Redisson has more than one read hold.
  local reads = tonumber(was_reader) or 0
  if not was_reader and not was_writer then
    local waited_for = rw_wait_over(waiting, holder)
    if not waited_for then return not_held(lock) end
    -- Readers let a writer that waited go first.
    return 0, waited_for == 'write' and '1' or nil
  end

  -- All fields but the mode and its own.
  local others = (fields or redis.call('HLEN', lock)) - 1
  if was_reader then others = others - 1 end
  if was_writer then others = others - 1 end
  local had_lease, longest = -2, -2
  for hold = 1, reads do
    local key = read_timeout(lock, holder, hold)
    if others > 0 then had_lease = math.max(had_lease, redis.call('PTTL', key)) end
    redis.call('DEL', key)
  end
  if others > 0 then
    local remaining = redis.call('PTTL', lock)
    local enough = remaining < 0 and math.huge or remaining / 2
    longest = remaining
    -- Two readings of one lease in one call may differ by this.
    local slack_ms = 5
    if was_writer or had_lease + slack_ms >= remaining then
      longest = readers_lease(lock, enough, holder)
    end
    if longest ~= -2 then
      redis.call('HDEL', lock, holder, writer)
      if was_writer then redis.call('HSET', lock, 'mode', 'read') end
      local is_sooner = longest >= 0 and longest < enough
      -- At least 1, because PEXPIRE with 0 deletes the key.
      if is_sooner then redis.call('PEXPIRE', lock, math.max(longest, 1)) end
      -- Refused callers were given the longer lease, and a waiter of Redisson sleeps for that time.
      if not was_writer then return 0, is_sooner and '1' or nil end
    end
  end
  if longest == -2 then redis.call('DEL', lock) end

  -- A user without the right to note it still frees the lock.
  if was_writer then pcall(write_ends, waiting) end
  -- Redisson wakes all its waiters for a 1, one reader or writer for a 0.
  return nil, was_writer and '1' or '0'
end
