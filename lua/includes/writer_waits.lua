-- Whether a writer of ours waits that a reader has to let go first; then whether anybody waits. A
-- reader that waited already when the last writer was done goes beside it, so neither side starves: one
-- that was refused before that, or has waited for so long in its client.
local function writer_waits(waiting, holder, waited_ms)
  if redis.call('EXISTS', waiting) == 0 then return false, false end
  local now = server_ms()
  if not writers_wait(waiting, now) then return false, true end
  local asked, done = unpack(redis.call('ZMSCORE', waiting, holder, 'done'))
  if not done then return true, true end
  local since = math.min(asked and -tonumber(asked) or now, now - waited_ms)
  return since > tonumber(done), true
end
