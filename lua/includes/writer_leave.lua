-- A writer waits no more: readers that let it go first may come. True if it waited.
local function writer_leave(writers, holder, channel, publish)
  if not writer_done_waiting(writers, holder) then return false end
  redis.pcall(publish, channel, '1')
  return true
end
