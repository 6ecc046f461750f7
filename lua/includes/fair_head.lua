-- The first waiter of a free fair lock that may still come, and whether it became the first just
-- now: the dead ones before it leave the queue. One of ours is dead when its heartbeat is over, one
-- of Redisson's when its score has passed, one with neither at once.
local function fair_head(queue, timeouts, alive)
  local now
  -- Bounds the time for which one call blocks the server; who asks next goes on.
  for left = 2000, 1, -1 do
    local head = redis.call('LINDEX', queue, 0)
    if not head then return nil, false end
    now = now or server_ms()
    local heartbeat = redis.call('ZSCORE', alive, head)
    local score = heartbeat or redis.call('ZSCORE', timeouts, head)
    if score and tonumber(score) > now then
      -- We do not lower the scores of all waiters at each grant, as Redisson does; so the head of
      -- theirs gets what it would have by now, and a dead one holds up nobody for longer.
      local latest = now + 300000
      if not heartbeat and tonumber(score) > latest then
        redis.call('ZADD', timeouts, latest, head)
      end
      return head, left < 2000
    end
    redis.call('LPOP', queue)
    redis.call('ZREM', timeouts, head)
    redis.call('ZREM', alive, head)
  end
  return redis.call('LINDEX', queue, 0), true
end
