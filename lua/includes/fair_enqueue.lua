-- Puts a waiter at the end of the queue, or leaves it where it is, and takes down its heartbeat.
--
-- Its score is what Redisson would give it: the lease that runs, and 300 s for each place in the
-- queue. A Redisson waiter that is served or gives up takes 300 s off all scores behind it, and so
-- leaves this one in the future; we ourselves never shift scores, so a grant costs the same however
-- long the queue is.
local function fair_enqueue(queue, timeouts, alive, holder, heartbeat_ms, remaining)
  local now = server_ms()
  local score = tonumber(redis.call('ZSCORE', timeouts, holder))
  local places, was_here = 2, false
  if not score then
    places = redis.call('LLEN', queue) + 1
    was_here = redis.call('ZSCORE', alive, holder)
  end
  local lasts = math.max(remaining, 0) + places * 300000
  redis.call('ZADD', alive, now + heartbeat_ms, holder)
  -- The heartbeats outlast the scores, so that our dead are known as ours.
  redis.call('PEXPIRE', alive, math.max(redis.call('PTTL', alive), lasts))
  if not score or score < now + 300000 then redis.call('ZADD', timeouts, now + lasts, holder) end
  if score then return end
  if places == 1 then
    -- What is left of ours that Redisson passed over.
    redis.call('ZREMRANGEBYSCORE', alive, '-inf', now)
  elseif was_here then
    -- Its place may be left of that.
    redis.call('LREM', queue, 1, holder)
  end
  -- Last: who stands in the queue without a score blocks Redisson for ever.
  redis.call('RPUSH', queue, holder)
end
