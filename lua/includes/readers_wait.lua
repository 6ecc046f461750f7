-- Whether readers of ours wait: they ask at least every second.
local function readers_wait(waiting, now)
  return redis.call('ZCOUNT', waiting, '-inf', 3000 - now) > 0
end
