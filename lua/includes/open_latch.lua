-- Opens a latch, and records this for its waiters, because the latch may be closed again before they look.
local function open_latch(latch, opened, call, kept_ms, channel, publish)
  redis.call('DEL', latch)
  redis.pcall('SET', opened, call, 'PX', kept_ms)
  redis.pcall(publish, channel, '0')
end
