-- uses: server_ms

-- Notes that a holder waits. A writer is noted with the end of its heartbeat, until which new readers let it go first.
-- A reader is noted with minus the present time, to be compared with the end of a writer.
local function rw_wait(waiting, holder, heartbeat_ms, mode)
  local now = server_ms()
  -- A full server accepts this write, which changes nothing, and after it all later ones. So a waiter stays noted.
  if redis.call('ZSCORE', waiting, holder) then redis.pcall('ZREM', waiting, '') end
  redis.call('ZADD', waiting, mode == 'read' and -now or now + heartbeat_ms, holder)
  redis.call('PEXPIRE', waiting, math.max(redis.call('PTTL', waiting), heartbeat_ms))
end
