-- uses: server_ms, mark_place, fair_expire_queue

-- Puts a waiter at the end of the queue, or leaves it where it is, and notes its heartbeat. Returns until when the
-- heartbeat lasts, and for a new place what is directly ahead of it: another waiter, or `held_by`.
--
-- The waiter gets the score that Redisson would give it: the end of the running lease, plus 300 s for each place in the
-- queue, and no less than the score of the waiter before it. When a waiter of Redisson is served or stops waiting, it
-- subtracts its wait, 300 s by default, from all scores behind it. That leaves this score in the future. After a longer
-- wait, Redisson may remove this waiter at the head of the queue, and the waiter's next call puts it there again. We
-- never shift scores ourselves, so a grant costs the same for every length of the queue.
local function fair_enqueue(q, holder, heartbeat_ms, on_turn, remaining, held_by)
  local redisson_wait_ms = 300 * 1000
  local now = server_ms()
  local score = tonumber(redis.call('ZSCORE', q.timeouts, holder))
  local length, scores = redis.call('LLEN', q.queue), redis.call('ZCARD', q.timeouts)
  -- If there are more scores than places, a place was removed: perhaps this one. A user without the right to look goes
  -- to the end.
  local is_queued = score and (scores <= length or tonumber(redis.pcall('LPOS', q.queue, holder)))
  local places, before, is_first, ahead = 2, 0, false, nil
  if not is_queued then
    local kept_until = tonumber(redis.call('ZSCORE', q.alive, holder))
    -- Its entry in the list may be left without a score.
    local left = (kept_until or length > scores) and redis.call('LREM', q.queue, 1, holder) or 0
    length = length - left
    -- Redisson removes waiters from the front only, each with its score. So this waiter is the first again, if the user
    -- has the right to LPUSH. The holder is directly ahead of it.
    local was_first = length > 0 and left == 0 and not score and kept_until and kept_until > now
    is_first = was_first and tonumber(redis.pcall('LPUSH', q.queue, holder))
    ahead = is_first and held_by
  end
  if not is_queued and not is_first then
    places = length + 1
    local last = length > 0 and redis.call('LINDEX', q.queue, -1)
    ahead = last or held_by
    before = last and tonumber(redis.call('ZSCORE', q.timeouts, last)) or 0
    -- The score of an unbounded wait is no usable number of ms.
    local year_ms = 365 * 24 * 3600 * 1000
    before = math.floor(math.min(before, now + year_ms))
  end
  local until_ms = math.max(now + math.max(remaining, 0) + places * redisson_wait_ms, before)
  local alive_until = now + heartbeat_ms
  -- A full server accepts this write, which changes nothing, and after it all later ones. So a waiter with a place
  -- keeps it.
  if is_queued then redis.pcall('ZREM', q.alive, '') end
  redis.call('ZADD', q.alive, mark_place(q.lock, alive_until, on_turn), holder)
  if redis.call('PTTL', q.alive) < until_ms - now then
    -- The heartbeats outlast the scores, so that our dead are known as ours.
    local ten_minutes_ms = 600 * 1000
    redis.call('PEXPIRE', q.alive, until_ms - now + ten_minutes_ms)
  end
  -- When a new queue begins, the scores of removed places are deleted.
  if places == 1 and scores > 0 then redis.call('DEL', q.timeouts) end
  if not is_queued or score < now + redisson_wait_ms then
    redis.call('ZADD', q.timeouts, until_ms, holder)
  end
  if is_queued then
    fair_expire_queue(q.queue, q.timeouts, q.alive, length, scores)
    return alive_until
  end
  if places == 1 then
    -- Remove heartbeats of our waiters that Redisson skipped.
    redis.call('ZREMRANGEBYSCORE', q.alive, '-inf', now)
  end
  -- Push last: a waiter in the queue without a score blocks Redisson for ever.
  length = is_first or redis.call('RPUSH', q.queue, holder)
  fair_expire_queue(q.queue, q.timeouts, q.alive, length, scores + 1)
  return alive_until, ahead
end
