-- Puts a waiter at the end of the queue, or leaves it where it is, and takes down its heartbeat.
--
-- Its score is what Redisson would give it: the lease that runs, and 300 s for each place in the
-- queue. A Redisson waiter that is served or gives up takes 300 s off all scores behind it, and so
-- leaves this one in the future; we ourselves never shift scores, so a grant costs the same however
-- long the queue is.
local function fair_enqueue(queue, timeouts, alive, holder, heartbeat_ms, remaining)
  local now = server_ms()
  local score = tonumber(redis.call('ZSCORE', timeouts, holder))
  local places = 2
  if not score then
    -- With a heartbeat it was queued before: its place may be left of that.
    if redis.call('ZSCORE', alive, holder) then redis.call('LREM', queue, 1, holder) end
    places = redis.call('RPUSH', queue, holder)
  end
  local lasts = math.max(remaining, 0) + places * 300000
  if not score or score < now + 300000 then redis.call('ZADD', timeouts, now + lasts, holder) end
  redis.call('ZADD', alive, now + heartbeat_ms, holder)
  -- The heartbeats outlast the scores, so that our dead are known as ours.
  redis.call('PEXPIRE', alive, math.max(redis.call('PTTL', alive), lasts))
end
