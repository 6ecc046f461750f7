-- Who has less time than this left is better off asking.
local fair_given_ms_min = 100

-- Hands a fair lock that was just freed to the head of its queue, or tells that one that it is its
-- turn. Says how many connections heard it.
--
-- One of ours becomes the holder here, and the message says so. Its lease is what is left of its
-- heartbeat: one that has just died holds up the others no longer than if it had not been given the
-- lock. The message names the end and the length of that lease, the token or `-`, and the lock: whoever
-- knows when it asked to be kept until then knows that the lease lasts so long from there at least. If
-- nobody hears it, all is as it was. One that wants to ask is told to, and so is one that wants a token
-- if there is no key for it.
local function fair_tell(lock, queue, timeouts, alive, channel, publish, token, retention)
  -- A user without a right to the queue or to publish still frees the lock: waiters poll.
  local looked, head, _, place, now = pcall(fair_head, lock, queue, timeouts, alive)
  if not looked or not head then return 0 end
  local its_channel = channel .. ':' .. head
  if place then
    local until_ms = math.floor(place)
    local left, wish = until_ms - now, place - until_ms
    local message
    if left >= fair_given_ms_min and wish ~= 0.25 and redis.pcall('PTTL', lock) == -2 then
      message = string.format('%.0f %.0f ', until_ms, left)
    end
    local its_token = '-'
    if message and wish == 0.5 then
      local counted
      counted, its_token = pcall(next_token, token)
      local is_kept = counted and type(its_token) == 'string'
        and pcall(keep_token, token, its_token, 0, retention)
      message = is_kept and message
    end
    if message then
      local granted, refused = pcall(grant, lock, head, 1, left, -2)
      if granted and not refused then
        local heard = tonumber(redis.pcall(publish, its_channel, message .. its_token .. ' ' .. lock)) or 0
        if heard == 0 then
          redis.pcall('HDEL', lock, head)
        else
          pcall(fair_pop, queue, timeouts, alive, head)
        end
        return heard
      end
    end
  end
  return tonumber(redis.pcall(publish, its_channel, '0')) or 0
end
