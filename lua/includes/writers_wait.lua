-- uses: heartbeat_ms_max

-- Whether writers of ours wait, by the ends of their heartbeats.
local function writers_wait(waiting, now)
  return redis.call('ZCOUNT', waiting, '(' .. now, now + heartbeat_ms_max) > 0
end
