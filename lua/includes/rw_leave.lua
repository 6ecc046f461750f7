-- uses: rw_wait_over, tell

-- Ends the wait of a holder. After a writer, the readers that let it go first are notified. Returns true if the holder
-- waited.
local function rw_leave(waiting, holder, channel, publish)
  local mode = rw_wait_over(waiting, holder)
  if mode == 'write' then tell(publish, channel, '1') end
  return mode ~= nil
end
