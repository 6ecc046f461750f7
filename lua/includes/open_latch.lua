-- Opens a latch, and notes that for those who wait: by the time they look, it may be closed again.
local function open_latch(latch, opened, call, kept_ms, channel, publish)
  redis.call('DEL', latch)
  redis.pcall('SET', opened, call, 'PX', kept_ms)
  redis.pcall(publish, channel, '0')
end
