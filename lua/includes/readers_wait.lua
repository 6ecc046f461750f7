-- Whether readers of ours wait: they ask at least every second. Who asked later than now was noted
-- before the server's clock was set back.
local function readers_wait(waiting, now)
  return redis.call('ZCOUNT', waiting, -now, 3000 - now) > 0
end
