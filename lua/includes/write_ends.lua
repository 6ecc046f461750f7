-- uses: server_ms, readers_wait

-- Notes that a writer is done. Readers that wait need not wait for the next writer as well, and a free lock is kept for
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
