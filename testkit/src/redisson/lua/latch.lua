-- The earlier answer to this unlock request, or nil.
local function answered(latch)
  local stored = redis.call('GET', latch)
  return stored and tonumber(stored) or nil
end

local function remember(latch, number, ttl_ms)
  redis.call('SET', latch, number, 'PX', ttl_ms)
end
