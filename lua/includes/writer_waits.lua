-- Whether a writer of ours waits that a reader has to let go first. A reader that waited already
-- when the last writer was done goes beside it: so neither side starves.
local function writer_waits(writers, waited_ms)
  if redis.call('EXISTS', writers) == 0 then return false end
  local now = server_ms()
  if redis.call('ZCOUNT', writers, '(' .. now, '+inf') == 0 then return false end
  local done = tonumber(redis.call('ZSCORE', writers, 'done'))
  return not (done and now - waited_ms < done)
end
