-- Sets the counts of a hold on a read-write lock, or takes a holder that only waits out of those
-- who wait. Returns how many connections were told that others may enter, -1 if there is no such
-- hold and no such waiter.
local function rw_settle(lock, waiting, holder, writes, reads, lease, channel, publish)
  local held = redis.call('HMGET', lock, holder, holder .. ':write')
  local had_reads, had_writes = tonumber(held[1]) or 0, tonumber(held[2]) or 0
  local is_over = writes + reads == 0
  if had_reads + had_writes == 0 then
    return is_over and rw_leave(waiting, holder, channel, publish) and 0 or not_held(lock)
  end
  if writes > 0 and had_writes == 0 then return -1 end
  local was_writer = writes == 0 and had_writes > 0
  local others, remaining, had_lease = 0, -2, -2
  if is_over or was_writer then
    others = redis.call('HLEN', lock) - 1
    if had_reads > 0 then others = others - 1 end
    if had_writes > 0 then others = others - 1 end
  end
  if not is_over then
    -- The first write is one that a full server accepts, and after it the others too.
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
    read_leases(lock, holder, reads, lease)
    redis.call('HSET', lock, holder, reads)
  end
  if writes > 0 then
    redis.call('HSET', lock, holder .. ':write', writes)
    if reads == 0 and had_reads > 0 then redis.call('HDEL', lock, holder) end
    return 0
  end
  if not is_over and not was_writer then return 0 end
  local longest = -2
  if reads + others > 0 then
    -- Others read on, or may be dead: the lock lives as long as the longest lease of them. If that
    -- is about what is left, or the one who left had no part in it, it is let be.
    local enough = remaining < 0 and math.huge or remaining / 2
    longest = remaining
    if was_writer or had_lease + 5 >= remaining then longest = readers_lease(lock, enough) end
    if longest ~= -2 then
      if reads == 0 then redis.call('HDEL', lock, holder) end
      if was_writer then
        redis.call('HDEL', lock, holder .. ':write')
        redis.call('HSET', lock, 'mode', 'read')
      end
      if longest >= 0 and longest < enough then redis.call('PEXPIRE', lock, longest) end
      if not was_writer then return 0 end
    end
  end
  if longest == -2 then redis.call('DEL', lock) end
  if was_writer then pcall(write_ends, waiting) end
  -- Redisson wakes all its waiters for a 1, one reader or writer for a 0.
  return tonumber(redis.pcall(publish, channel, was_writer and '1' or '0')) or 0
end
