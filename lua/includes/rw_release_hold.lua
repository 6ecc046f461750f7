-- uses: not_held, rw_wait_over, read_timeout, read_leases, readers_lease, write_ends

-- Sets the counts of a hold on a read-write lock, or removes a holder that only waits. Returns the reply of a release,
-- -1 if there is no such hold and no such waiter; then the message that tells others that they may enter, if they may:
-- if there is no reply, it is how many received that. Callers that have looked pass `held`, the values of its two
-- fields, and `fields`, the number of fields, if the hold ends.
--
-- 1. Look at what the holder has. Nothing: it may be waiting, and gives that up. A write count is never
--    raised here.
-- 2. Count the fields of others: a hold that goes leaves the lock to them; one that stays keeps it.
-- 3. Write first what a full server accepts, as all later writes then are too. A hold that stays
--    lengthens the lease of the lock; one that goes, while others stay, first notes what its own read
--    leases are, as they are deleted next.
-- 4. Delete the leases of the read holds that go, and set the counts of what stays. If it goes on
--    writing, or reading as before, that is all: no other caller can enter now that could not before.
-- 5. It is gone, or was a writer and reads now. Readers that stay decide how long the lock lives: the
--    longest lease of them. All of them are read only if the leaving holder may have had the longest. A lock with about
--    the right lease stays as it is; otherwise waiters are notified. If no reader is alive the lock goes.
-- 6. Note the end of a writer, and notify waiters.
local function rw_release_hold(lock, waiting, holder, writes, reads, lease, held, fields)
  local writer = holder .. ':write'
  held = held or redis.call('HMGET', lock, holder, writer)
  local had_reads, had_writes = tonumber(held[1]) or 0, tonumber(held[2]) or 0
  local is_over = writes + reads == 0
  if had_reads + had_writes == 0 then
    local waited_for = is_over and rw_wait_over(waiting, holder)
    if not waited_for then return not_held(lock) end
    -- Readers let a writer that waited go first.
    return 0, waited_for == 'write' and '1' or nil
  end
  if writes > 0 and had_writes == 0 then return -1 end

  local was_writer = writes == 0 and had_writes > 0
  local others, remaining, had_lease = 0, -2, -2
  if is_over or was_writer then
    -- All fields but the mode and its own.
    others = (fields or redis.call('HLEN', lock)) - 1
    if had_reads > 0 then others = others - 1 end
    if had_writes > 0 then others = others - 1 end
  end
  if not is_over then
    remaining = math.max(redis.call('PTTL', lock), tonumber(lease))
    redis.call('PEXPIRE', lock, remaining)
  elseif others > 0 then
    remaining = redis.call('PTTL', lock)
    for hold = 1, had_reads do
      had_lease = math.max(had_lease, redis.call('PTTL', read_timeout(lock, holder, hold)))
    end
  end

  for hold = reads + 1, had_reads do redis.call('DEL', read_timeout(lock, holder, hold)) end
  if reads > 0 then
    -- A writer that reads on keeps the lease that it had, which a renewal under way may have lengthened.
    read_leases(lock, holder, reads, was_writer and remaining or lease)
    redis.call('HSET', lock, holder, reads)
  end
  if writes > 0 then
    redis.call('HSET', lock, writer, writes)
    if reads == 0 and had_reads > 0 then redis.call('HDEL', lock, holder) end
    return 0
  end
  if not is_over and not was_writer then return 0 end

  local longest = -2
  if reads + others > 0 then
    local enough = remaining < 0 and math.huge or remaining / 2
    longest = remaining
    -- Two looks at one lease in one call may differ by this.
    local slack_ms = 5
    if was_writer or had_lease + slack_ms >= remaining then
      longest = readers_lease(lock, enough, reads == 0 and holder)
    end
    if longest ~= -2 then
      if reads == 0 then redis.call('HDEL', lock, holder) end
      if was_writer then
        redis.call('HDEL', lock, writer)
        redis.call('HSET', lock, 'mode', 'read')
      end
      local is_sooner = longest >= 0 and longest < enough
      if is_sooner then redis.call('PEXPIRE', lock, longest) end
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
