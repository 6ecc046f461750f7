-- A writer waits no more; with the last one goes all that is known of them. True if it waited.
local function writer_done_waiting(writers, holder)
  if redis.call('ZREM', writers, holder) == 0 then return false end
  -- What is left may be dead, or only tell when the last writer was done.
  if redis.call('ZCOUNT', writers, '(' .. server_ms(), '+inf') == 0 then redis.call('DEL', writers) end
  return true
end
