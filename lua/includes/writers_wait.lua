-- Whether writers of ours wait: their heartbeats last for 3 s at most. What lies further ahead was noted
-- before the server's clock was set back.
local function writers_wait(waiting, now)
  return redis.call('ZCOUNT', waiting, '(' .. now, now + 3000) > 0
end
