-- Whether readers of ours wait, which ask again within a heartbeat. A reader noted later than `now` was noted before
-- the server's clock was set back, and does not count.
local function readers_wait(waiting, now)
  local heartbeat_ms_max = 3000
  return redis.call('ZCOUNT', waiting, -now, heartbeat_ms_max - now) > 0
end
