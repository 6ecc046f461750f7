-- Whether writers of ours wait, by the ends of their heartbeats.
local function writers_wait(waiting, now)
  local heartbeat_ms_max = 3000
  return redis.call('ZCOUNT', waiting, '(' .. now, now + heartbeat_ms_max) > 0
end
