-- uses: count_at, server_ms, semaphore_reclaim
--[[
  semaphore_acquire: take permits of a semaphore, all that are asked for or none.
  KEYS[1]  free       STRING  permits that are free
  KEYS[2]  timeouts   ZSET    permit -> server ms until which it is taken
  KEYS[3]  queue      ZSET    waiter of ours -> when it came, in server us; only with a heartbeat that is not 0
  KEYS[4]  alive      ZSET    waiter of ours -> server ms until which its place is kept; only then
  ARGV[1]  lease_ms   lease of each permit from now; a longer one that already runs is kept
  ARGV[2]  permits    how many are asked for
  ARGV[3]  declared   how many the semaphore has in total; 0: unknown to the caller
  ARGV[4]  channel    where waiters listen
  ARGV[5]  publish    PUBLISH or SPUBLISH
  ARGV[6]  heartbeat  ms for which places are kept; 0: the caller takes no place, and passes waiters
                      -1: the caller takes no place, and passes none
  ARGV[7]  first      the first permit; a repeat finds it taken
  ARGV[i]  ids        from 7 on, one for each permit, then the waiters whose places are kept; the first of these
                      waiters asks
  Reply    1 taken now
           {free, wait_ms}  refused: how many are free, and when the first lease ends, -1: never
           -1 it was never declared
           {-1, total, declared}  it has another total than declared, or a smaller one than is asked for
]]
local free_key, timeouts, queue, alive = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local wanted, heartbeat = tonumber(ARGV[2]), tonumber(ARGV[6])
local now = server_ms()
local first = ARGV[7]
-- Fast path for one free permit and a caller that passes waiters, before the pieces that it does not need.
if wanted == 1 and heartbeat == 0 then
  local free, total = count_at(free_key), tonumber(ARGV[3])
  if type(free) == 'number' and free > 0 and (total == 0 or free + redis.call('ZCARD', timeouts) == total) then
    redis.call('INCRBY', free_key, -1)
    local taken = redis.pcall('ZADD', timeouts, 'GT', now + ARGV[1], first)
    -- A repeat finds its permit taken, and only lengthens its lease.
    if taken ~= 1 then redis.call('INCRBY', free_key, 1) end
    return type(taken) == 'table' and taken or 1
  end
end
-- Takes the permits. Returns how many of them were not taken before, or an error reply.
local function take(until_ms, only_known)
  local args = {timeouts}
  if only_known then args[2] = 'XX' end
  for i = 7, 6 + wanted do
    args[#args + 1], args[#args + 2] = until_ms, ARGV[i]
  end
  return redis.pcall('ZADD', unpack(args))
end
local until_ms, known = now + ARGV[1], redis.call('ZSCORE', timeouts, first)
if known then
  -- A repeat. Other permits of this call may have been released since, by guards of their own.
  local kept = take(math.max(until_ms, known), true)
  return type(kept) == 'table' and kept or 1
end
local free = count_at(free_key)
if type(free) == 'table' then return free end
local declared = tonumber(ARGV[3])
local has_news = not free
if not free then
  if declared == 0 then return -1 end
  -- Only this number may have been lost, so permits may be taken.
  redis.call('ZREMRANGEBYSCORE', timeouts, 0, now)
  free = declared - redis.call('ZCARD', timeouts)
  redis.call('SET', free_key, free)
end
local reclaimed = semaphore_reclaim(free_key, timeouts, now)
free = free + reclaimed
has_news = has_news or reclaimed > 0
if declared ~= 0 or free < wanted then
  local total = free + redis.call('ZCARD', timeouts)
  if (declared ~= 0 and total ~= declared) or total < wanted then return {-1, total, declared} end
end
local is_next = true
if heartbeat ~= 0 then
  local heartbeat_ms_max = 3000
  local oldest = redis.call('ZRANGE', alive, 0, 999, 'WITHSCORES')
  for i = 1, #oldest, 2 do
    if tonumber(oldest[i + 1]) > now then break end
    redis.call('ZREM', queue, oldest[i])
    redis.call('ZREM', alive, oldest[i])
  end
  if heartbeat > 0 then
    local time = redis.call('TIME')
    -- Behind all others, even if the clock was set back.
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    local came = math.max(time[1] * 1000000 + time[2], last or 0)
    for i = 7 + wanted, #ARGV do
      if not redis.call('ZSCORE', queue, ARGV[i]) then
        redis.call('ZADD', queue, string.format('%.0f', came + i), ARGV[i])
      end
      redis.call('ZADD', alive, now + heartbeat, ARGV[i])
    end
    -- The keys outlast the places of all clients.
    redis.call('PEXPIRE', queue, heartbeat_ms_max * 2)
    redis.call('PEXPIRE', alive, heartbeat_ms_max * 2)
  end
  local head, kept
  repeat
    head = redis.call('ZRANGE', queue, 0, 0)[1]
    kept = head and tonumber(redis.call('ZSCORE', alive, head) or 0)
    if kept == 0 then redis.call('ZREM', queue, head) end
  until kept ~= 0
  -- The server's clock was set back: the head may be dead.
  if kept and kept > now + heartbeat_ms_max then redis.call('ZADD', alive, now + heartbeat_ms_max, head) end
  local asks = ARGV[7 + wanted]
  for i = 8 + wanted, #ARGV do
    -- The waiters of one client stand in the order of its calls, but their attempts may have come in another order.
    if ARGV[i] == head and heartbeat > 0 then
      redis.call('ZADD', queue, redis.call('ZSCORE', queue, asks), head, redis.call('ZSCORE', queue, head), asks)
      head = asks
    end
  end
  is_next = not head or head == asks
end
if is_next and free >= wanted then
  redis.call('INCRBY', free_key, -wanted)
  local taken = take(until_ms)
  local is_error = type(taken) == 'table'
  -- Only an attempt that arrives late finds some of its permits taken.
  local before = is_error and wanted or wanted - taken
  if before > 0 then redis.call('INCRBY', free_key, before) end
  if is_error then return taken end
  free = free - taken
  if heartbeat > 0 then
    redis.call('ZREM', queue, ARGV[7 + wanted])
    redis.call('ZREM', alive, ARGV[7 + wanted])
  end
  has_news = has_news or (heartbeat > 0 and redis.call('ZCARD', queue) > 0)
  if free > 0 and has_news then redis.pcall(ARGV[5], ARGV[4], free) end
  return 1
end
-- The free permits may be enough for others.
if free > 0 and has_news then redis.pcall(ARGV[5], ARGV[4], free) end
local ends = redis.call('ZRANGE', timeouts, 0, 0, 'WITHSCORES')[2]
return {free, ends and math.max(0, ends - now) or -1}
