-- A writer waits no more: readers that let it go first may come. True if it waited.
local function writer_leave(writers, holder, channel, publish)
  if redis.call('ZREM', writers, holder) == 0 then return false end
  redis.pcall(publish, channel, '1')
  return true
end
