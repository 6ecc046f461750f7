-- uses: server_ms, read_place, fair_dequeue

-- How many queue entries (dead waiters, and waiters for the other lock) this call may still pass: bounds the time it
-- blocks the server. The next call goes on.
local fair_passes_left = 2000

-- Returns the first waiter of a free fair lock that may be alive, nil if there is none, and whether it became the first
-- in this call. For a waiter of ours also until when its place is kept, what it wants on its turn, and the time.
--
-- Removes dead waiters before it from the queue. A waiter of ours is dead when its heartbeat is over, a waiter of
-- Redisson when its score has passed, and a waiter with neither at once. Our waiters for the other lock with this queue
-- stay. A waiter of Redisson may wait for either lock.
local function fair_head(lock, queue, timeouts, alive)
  local now
  local is_new, index = false, 0
  while true do
    local head = redis.call('LINDEX', queue, index)
    if not head then return nil, false end
    if fair_passes_left == 0 then return head, true end
    now = now or server_ms()
    local heartbeat = redis.call('ZSCORE', alive, head)
    local score = tonumber(heartbeat or redis.call('ZSCORE', timeouts, head))
    if not score or score <= now then
      fair_dequeue(queue, timeouts, alive, head)
      is_new = true
    elseif not heartbeat then
      -- We do not lower the scores of all waiters at each grant, as Redisson does. So lower the score of the head to
      -- the value that it would have with Redisson alone. Then a dead head delays the others no longer than there.
      local redisson_wait_ms = 300 * 1000
      local latest = now + redisson_wait_ms
      if score > latest then redis.call('ZADD', timeouts, latest, head) end
      return head, is_new
    else
      local until_ms, on_turn = read_place(lock, score)
      if until_ms then
        local heartbeat_ms_max = 3000
        local latest = now + heartbeat_ms_max
        if until_ms > latest then
          -- The server's clock was set back. Now all such places end together, or only the head's place if the user may
          -- not list them. Subtract whole ms, which keeps the fraction.
          redis.call('ZADD', alive, score - (until_ms - latest), head)
          until_ms = latest
          local last = redis.pcall('ZRANGE', alive, -fair_passes_left, -1, 'WITHSCORES')
          for i = 2, #last, 2 do
            local ahead = math.floor(last[i]) - latest
            if ahead > 0 then redis.call('ZADD', alive, last[i] - ahead, last[i - 1]) end
          end
        end
        return head, is_new, until_ms, on_turn, now
      end
      index = index + 1
    end
    fair_passes_left = fair_passes_left - 1
  end
end
