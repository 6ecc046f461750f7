-- Gives a queue an end, so that what a dead client left goes also if nobody asks for its lock again: an
-- hour after one of ours has asked, if all of them are ours. Redisson's waiters may not ask for as long as
-- it takes: a queue with one of those is kept for a year, or has no end, as Redisson made it.
local function fair_end(queue, timeouts, alive, length, scores)
  local left, kept = redis.call('PTTL', queue), nil
  -- Nor if there are scores without a place, so that no score ends before its place.
  if redis.call('ZCARD', alive) < length or scores > length then
    if left >= 0 and left < 15768000000 then kept = 31536000000 end
  elseif left < 1800000 then
    kept = 3600000
  end
  if kept then
    redis.call('PEXPIRE', timeouts, kept)
    redis.call('PEXPIRE', queue, kept)
  end
end
