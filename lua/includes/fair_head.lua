-- So many entries of queues are passed in one call, the dead and those that wait for another lock:
-- bounds the time for which it blocks the server. Who asks next goes on.
local fair_passed_max = 2000

-- The first waiter of a free fair lock that may still come, and whether it became the first just
-- now: the dead ones before it leave the queue. One of ours is dead when its heartbeat is over, one
-- of Redisson's when its score has passed, one with neither at once. Those of ours that wait for the
-- other lock with this queue are let be; of which lock one of Redisson's is nobody can tell. Then, of
-- one of ours, its score in `alive` without the mark, and what time it is.
local function fair_head(lock, queue, timeouts, alive)
  local now
  local is_new, place = false, 0
  while true do
    local head = redis.call('LINDEX', queue, place)
    if not head then return nil, false end
    if fair_passed_max == 0 then return head, true end
    now = now or server_ms()
    local heartbeat = redis.call('ZSCORE', alive, head)
    local score = tonumber(heartbeat or redis.call('ZSCORE', timeouts, head))
    if not score or score <= now then
      fair_pop(queue, timeouts, alive, head)
      is_new = true
    elseif heartbeat and score % 0.25 ~= fair_mark(lock) then
      place = place + 1
    else
      -- Further ahead than any heartbeat lasts: the server's clock was set back. All such end together;
      -- the head alone, for a user who may not list them.
      if heartbeat and math.floor(score) > now + 3000 then
        score = now + 3000 + score % 1
        redis.call('ZADD', alive, score, head)
        local last = redis.pcall('ZRANGE', alive, -fair_passed_max, -1, 'WITHSCORES')
        for i = 2, #last, 2 do
          local other = tonumber(last[i])
          if math.floor(other) > now + 3000 then
            redis.call('ZADD', alive, now + 3000 + other % 1, last[i - 1])
          end
        end
      end
      -- We do not lower the scores of all waiters at each grant, as Redisson does; so the head of
      -- theirs gets what it would have by now, and a dead one holds up nobody for longer.
      local latest = now + 300000
      if not heartbeat and score > latest then
        redis.call('ZADD', timeouts, latest, head)
      end
      return head, is_new, heartbeat and score - fair_mark(lock), now
    end
    fair_passed_max = fair_passed_max - 1
  end
end
