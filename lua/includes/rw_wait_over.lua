-- uses: server_ms, writers_wait, readers_wait

-- Removes a holder from the waiters. With the last waiter, removes all notes about waiters. Returns read | write, the
-- mode that it waited for, nil if it did not wait.
local function rw_wait_over(waiting, holder)
  local score = tonumber(redis.call('ZSCORE', waiting, holder))
  if not score then return nil end
  redis.call('ZREM', waiting, holder)
  local now = server_ms()
  if not writers_wait(waiting, now) and not readers_wait(waiting, now) then
    redis.call('DEL', waiting)
  end
  return score < 0 and 'read' or 'write'
end
