-- uses: year_ms

-- How long a queue lives after one of ours has asked. Only a queue with less than half of a life left
-- gets a new one: most calls write nothing.
local queue_ms = 3600 * 1000

-- Gives a queue an end, so that what a dead client left goes even if nobody asks for its lock again: an
-- hour after one of ours asked, if all of them are ours. Redisson's waiters may sleep for as long as
-- they were told to, so a queue with one of those is kept for a year, or has no end, as Redisson made it.
local function fair_expire_queue(q, length, scores)
  local left, life = redis.call('PTTL', q.queue), nil
  -- Scores without a place count as Redisson's: no score may end before its place.
  if redis.call('ZCARD', q.alive) < length or scores > length then
    if left >= 0 and left < year_ms / 2 then life = year_ms end
  elseif left < queue_ms / 2 then
    life = queue_ms
  end
  if life then
    redis.call('PEXPIRE', q.timeouts, life)
    redis.call('PEXPIRE', q.queue, life)
  end
end
