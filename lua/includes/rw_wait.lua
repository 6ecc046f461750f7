-- uses: server_ms

-- Notes that a holder waits: a writer with the end of its heartbeat, until which new readers let it go
-- first; a reader with minus the time, so that a writer that ends later is known to.
local function rw_wait(waiting, holder, heartbeat_ms, mode)
  local now = server_ms()
  -- A full server accepts this write, which changes nothing, and all later ones after it: one that waits already
  -- waits on.
  if redis.call('ZSCORE', waiting, holder) then redis.pcall('ZREM', waiting, '') end
  redis.call('ZADD', waiting, mode == 'read' and -now or now + heartbeat_ms, holder)
  redis.call('PEXPIRE', waiting, math.max(redis.call('PTTL', waiting), heartbeat_ms))
end
