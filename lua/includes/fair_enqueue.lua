-- Puts a waiter at the end of the queue, or leaves it where it is, and takes down its heartbeat. Says
-- until when that lasts.
--
-- Its score is what Redisson would give it: the lease that runs, and 300 s for each place in the
-- queue; and no less than the waiter before it has. A Redisson waiter that is served or gives up
-- takes its wait, 300 s by default, off all scores behind it, and so leaves this one in the future;
-- we ourselves never shift scores, so a grant costs the same however long the queue is.
local function fair_enqueue(lock, queue, timeouts, alive, holder, heartbeat_ms, remaining)
  local now = server_ms()
  local score = tonumber(redis.call('ZSCORE', timeouts, holder))
  local length, scores = redis.call('LLEN', queue), redis.call('ZCARD', timeouts)
  -- Where there are more scores than places, somebody has taken a place away: perhaps this one.
  local is_queued = score and (scores <= length or redis.call('LPOS', queue, holder))
  local places, before, was_here = 2, 0, false
  if not is_queued then
    places = length + 1
    was_here = redis.call('ZSCORE', alive, holder) or length > scores
    local last = length > 0 and redis.call('LINDEX', queue, -1)
    before = last and tonumber(redis.call('ZSCORE', timeouts, last)) or 0
    -- A wait without end makes a score that is no number of ms any more.
    before = math.floor(math.min(before, now + 31536000000))
  end
  local until_ms = math.max(now + math.max(remaining, 0) + places * 300000, before)
  local alive_until = now + heartbeat_ms + fair_mark(lock)
  redis.call('ZADD', alive, alive_until, holder)
  -- The heartbeats outlast the scores, so that our dead are known as ours.
  if redis.call('PTTL', alive) < until_ms - now then
    redis.call('PEXPIRE', alive, until_ms - now + 600000)
  end
  -- What is left of places that were taken away goes when a new queue begins.
  if places == 1 and scores > 0 then redis.call('DEL', timeouts) end
  if not is_queued or score < now + 300000 then redis.call('ZADD', timeouts, until_ms, holder) end
  if is_queued then
    fair_end(queue, timeouts, alive, length, scores)
    return math.floor(alive_until)
  end
  if places == 1 then
    -- What is left of ours that Redisson passed over.
    redis.call('ZREMRANGEBYSCORE', alive, '-inf', now)
  elseif was_here then
    -- Its place may be left of that.
    redis.call('LREM', queue, 1, holder)
  end
  -- Last: who stands in the queue without a score blocks Redisson for ever.
  fair_end(queue, timeouts, alive, redis.call('RPUSH', queue, holder), scores + 1)
  return math.floor(alive_until)
end
