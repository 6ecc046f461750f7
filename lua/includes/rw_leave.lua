-- uses: rw_wait_over

-- A holder gives up waiting; readers that let a writer go first may enter. True if it waited.
local function rw_leave(waiting, holder, channel, publish)
  local mode = rw_wait_over(waiting, holder)
  if mode == 'write' then redis.pcall(publish, channel, '1') end
  return mode ~= nil
end
