-- Who has less time than this left is better off asking.
local fair_given_ms_min = 100

-- Makes the head of the queue the holder of a free lock, and tells it so. Its lease is what is left of
-- its heartbeat: one that has just died holds up the others no longer than if it had not been given the
-- lock. The message names the end and the length of that lease, and the token if there is one: whoever
-- knows when it asked to be kept until then knows that the lease lasts so long from there at least.
--
-- Says how many connections heard it; if none did, it is as it was. Nothing if it has to ask by itself:
-- it wants to, it wants a token and there is no key for it, or somebody has the lock.
local function fair_give(
  lock, queue, timeouts, alive, head, place, now, its_channel, publish, token)
  local until_ms = math.floor(place)
  local left, wish = until_ms - now, place - until_ms
  if left < fair_given_ms_min or wish == 0.25 or (wish == 0.5 and not token) then return end
  if redis.call('PTTL', lock) ~= -2 then return end
  local message = string.format('%.0f %.0f', until_ms, left)
  if wish == 0.5 then
    local next_one = next_token(token)
    if type(next_one) ~= 'string' then return end
    redis.call('SET', token, next_one)
    message = message .. ' ' .. next_one
  end
  if grant(lock, head, 1, left, -2) then return end
  local heard = tonumber(redis.pcall(publish, its_channel, message)) or 0
  if heard == 0 then
    redis.call('HDEL', lock, head)
  else
    pcall(fair_pop, queue, timeouts, alive, head)
  end
  return heard
end
