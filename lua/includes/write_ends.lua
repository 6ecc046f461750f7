-- uses: server_ms, readers_wait

-- A writer is done: readers that wait need not wait for the next writer too, and a free lock is kept for
-- them for a moment.
local function write_ends(waiting)
  if redis.call('EXISTS', waiting) == 0 then return end
  local now = server_ms()
  redis.call('ZADD', waiting, now, 'done')
  if readers_wait(waiting, now) then
    redis.call('ZADD', waiting, 0, 'turn')
  else
    redis.call('ZREM', waiting, 'turn')
  end
end
