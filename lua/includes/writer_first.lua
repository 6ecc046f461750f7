-- uses: server_ms, writers_wait

-- Returns whether a reader has to let a waiting writer of ours go first, and whether anyone waits. A reader that was
-- already waiting when the last writer was done may enter, so neither side starves. It was refused before that, or has
-- waited for as long in its client.
local function writer_first(waiting, holder, waited_ms)
  if redis.call('EXISTS', waiting) == 0 then return false, false end
  local now = server_ms()
  if not writers_wait(waiting, now) then return false, true end
  local asked, done = unpack(redis.call('ZMSCORE', waiting, holder, 'done'))
  done = tonumber(done) or 0
  -- Noted before the server's clock was set back, so no end of a writer is known.
  if done > now then done = 0 end
  local has_asked = asked and -tonumber(asked) <= done
  return not has_asked and now - waited_ms >= done, true
end
