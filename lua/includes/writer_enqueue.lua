-- Takes down that a writer waits, and its heartbeat: new readers let it go first.
local function writer_enqueue(writers, holder, heartbeat_ms)
  redis.call('ZADD', writers, server_ms() + heartbeat_ms, holder)
  redis.call('PEXPIRE', writers, math.max(redis.call('PTTL', writers), heartbeat_ms))
end
