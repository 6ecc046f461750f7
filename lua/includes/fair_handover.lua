-- uses: fair_head, fair_dequeue, next_token, keep_token, grant

-- Makes the head of the queue of a fair lock that was just freed its holder, or wakes the head. Returns how many
-- connections received the message.
--
-- 1. Find the head. A user without the right to look at the queue, or to publish, has still freed the lock:
--    waiters poll.
-- 2. Decide whether the head is handed the lock. It must be a waiter of ours that accepts that, its place must be kept
--    for long enough, and the lock must be free (the freed lock may be the other one with this queue). If the head
--    wants a token, the counter must be readable and writable; the token is stored before the grant.
-- 3. Grant the lock. Its lease is the rest of the time for which the place is kept. So a waiter that has just died
--    delays the others no longer than its place would have.
-- 4. Send the one message that reports the grant: the end of that lease, its length, the token or `-`, and the name of
--    the lock. The waiter knows when it asked for its place to be kept until that time, and counts the lease from that
--    request, because the server granted it later.
-- 5. If no connection received it, undo the grant; the place stays. Otherwise remove the waiter from the queue, only
--    now, so that it always has a place or the lock.
-- In all other cases wake the head: `0`, it is its turn.
local function fair_handover(q)
  local found, head, _, until_ms, on_turn, now = pcall(
    fair_head, q.lock, q.queue, q.timeouts, q.alive)
  if not found or not head then return 0 end
  local channel = q.channel .. ':' .. head
  local lease = until_ms and until_ms - now or 0
  -- With less time than this, the waiter had better ask for a full lease.
  local handover_ms_min = 100
  local may_grant = lease >= handover_ms_min and on_turn ~= 'wake' and redis.pcall('PTTL', q.lock) == -2
  local token = '-'
  if may_grant and on_turn == 'grant_fenced' then
    local counted, stays
    counted, token, stays = pcall(next_token, q.token)
    may_grant = counted and type(token) == 'string'
      and pcall(keep_token, q.token, token, 0, q.retention, stays)
  end
  if may_grant then
    local granted, refused = pcall(grant, q.lock, head, lease, -2)
    if granted and not refused then
      local times = string.format('%.0f %.0f ', until_ms, lease)
      local message = times .. token .. ' ' .. q.lock
      local receivers = tonumber(redis.pcall(q.publish, channel, message)) or 0
      if receivers == 0 then
        redis.pcall('HDEL', q.lock, head)
      else
        pcall(fair_dequeue, q.queue, q.timeouts, q.alive, head)
      end
      return receivers
    end
  end
  return tonumber(redis.pcall(q.publish, channel, '0')) or 0
end
