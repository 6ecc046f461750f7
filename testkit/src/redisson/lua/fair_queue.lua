-- Checks only the head. A head without a deadline stays forever.
local function evict_stale(queue, deadlines, now)
  while true do
    local head = redis.call('LINDEX', queue, 0)
    local deadline = head and redis.call('ZSCORE', deadlines, head)
    if not deadline or tonumber(deadline) > now then return end
    redis.call('ZREM', deadlines, head)
    redis.call('LPOP', queue)
  end
end

local function tell_head(queue, channel)
  local head = redis.call('LINDEX', queue, 0)
  if head then redis.call('PUBLISH', channel .. ':' .. head, 0) end
end

-- Whether the holder has the lock now: it was free at the holder's turn, or is re-entered.
local function take_or_enter(lock, queue, deadlines, holder, lease_ms, wait_ms)
  if redis.call('EXISTS', lock) == 0
    and (redis.call('EXISTS', queue) == 0 or redis.call('LINDEX', queue, 0) == holder) then
    redis.call('LPOP', queue)
    redis.call('ZREM', deadlines, holder)
    for _, waiter in ipairs(redis.call('ZRANGE', deadlines, 0, -1)) do
      redis.call('ZINCRBY', deadlines, -wait_ms, waiter)
    end
    redis.call('HSET', lock, holder, 1)
  elseif redis.call('HEXISTS', lock, holder) == 1 then
    redis.call('HINCRBY', lock, holder, 1)
  else
    return false
  end
  redis.call('PEXPIRE', lock, lease_ms)
  return true
end
