-- uses: rw_wait_over, tell

-- Ends the wait of a holder; readers that let a writer go first may enter. True if it waited.
local function rw_leave(waiting, holder, channel, publish)
  local mode = rw_wait_over(waiting, holder)
  if mode == 'write' then tell(publish, channel, '1') end
  return mode ~= nil
end
