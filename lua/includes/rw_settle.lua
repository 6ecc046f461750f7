-- Sets the counts of a hold on a read-write lock, or takes a holder that only waits out of those
-- who wait. Returns how many connections were told that others may enter, -1 if there is no such
-- hold and no such waiter.
local function rw_settle(lock, writers, holder, writes, reads, lease, channel, publish)
  local held = redis.call('HMGET', lock, holder, holder .. ':write')
  local had_reads, had_writes = tonumber(held[1]) or 0, tonumber(held[2]) or 0
  if had_reads + had_writes == 0 then
    local waited = writes + reads == 0 and writer_leave(writers, holder, channel, publish)
    return waited and 0 or -1
  end
  if writes > 0 and had_writes == 0 then return -1 end
  local remaining = redis.call('PTTL', lock)
  local had_lease = -2
  if had_reads > 0 then had_lease = redis.call('PTTL', read_timeout(lock, holder, had_reads)) end
  -- The first write is one that a full server accepts, and after it the others too.
  if writes + reads > 0 then
    remaining = math.max(remaining, tonumber(lease))
    redis.call('PEXPIRE', lock, remaining)
  end
  for hold = reads + 1, had_reads do redis.call('DEL', read_timeout(lock, holder, hold)) end
  if reads > 0 then
    redis.call('HSET', lock, holder, reads)
    read_leases(lock, holder, reads, lease)
  else
    redis.call('HDEL', lock, holder)
  end
  if writes > 0 then
    redis.call('HSET', lock, holder .. ':write', writes)
    return 0
  end
  local was_writer = had_writes > 0
  if was_writer then
    redis.call('HDEL', lock, holder .. ':write')
    -- Readers that waited for this need not wait for the next writer too.
    if redis.call('EXISTS', writers) == 1 then redis.call('ZADD', writers, server_ms(), 'done') end
  elseif reads > 0 then
    return 0
  end
  if redis.call('HLEN', lock) > 1 then
    -- Others read on, or may be dead: the lock lives as long as the longest lease of them. If that
    -- is about what is left, or the one who left had no part in it, it is let be.
    local longest = remaining
    if was_writer or had_lease + 5 >= remaining then longest = readers_lease(lock, remaining / 2) end
    if longest ~= -2 then
      if was_writer then redis.call('HSET', lock, 'mode', 'read') end
      if longest >= 0 and longest < remaining / 2 then redis.call('PEXPIRE', lock, longest) end
      if not was_writer then return 0 end
      return tonumber(redis.pcall(publish, channel, '1')) or 0
    end
  end
  redis.call('DEL', lock)
  -- Redisson wakes all its waiters for a 1, one reader or writer for a 0.
  return tonumber(redis.pcall(publish, channel, was_writer and '1' or '0')) or 0
end
