-- uses: count_at, server_ms, semaphore_reclaim
--[[
  semaphore_acquire: take permits of a semaphore, all that are asked for or none.
  KEYS[1]  free       STRING  permits that are free
  KEYS[2]  timeouts   ZSET    permit -> server ms until which it is taken
  KEYS[3]  queue      ZSET    waiter of ours -> when it came, in server us; only of a fair semaphore
  KEYS[4]  alive      ZSET    waiter of ours -> server ms until which its place is kept
  ARGV[1]  lease_ms   lease of each permit from now; a longer one that already runs is kept
  ARGV[2]  permits    how many are asked for
  ARGV[3]  declared   how many the semaphore has in all; 0: unknown to the caller
  ARGV[4]  channel    where waiters listen
  ARGV[5]  publish    PUBLISH or SPUBLISH
  ARGV[6]  heartbeat  ms for which places are kept; 0: the caller takes no place, and passes waiters
                      -1: the caller takes no place, and passes none
  ARGV[7]  first      the first permit; a repeat finds it taken
  ARGV[i]  ids        from 7 on, as many as permits are asked for, then the waiters to keep a place for; the first of
                      these asks
  Reply    1 taken now
           {free, wait_ms}  refused: how many are free, and when the first lease ends, -1: never
           -1 it was never declared
           {-1, total, declared}  it was declared with another number of permits
]]
local free_key, timeouts, queue, alive = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local wanted, heartbeat = tonumber(ARGV[2]), tonumber(ARGV[6])
local now = server_ms()
local first = ARGV[7]
-- Returns an error reply, or nothing.
local function take(until_ms)
  local scores = {}
  for i = 7, 6 + wanted do
    scores[#scores + 1], scores[#scores + 2] = until_ms, ARGV[i]
  end
  local taken = redis.pcall('ZADD', timeouts, unpack(scores))
  return type(taken) == 'table' and taken or nil
end
local until_ms, known = now + ARGV[1], redis.call('ZSCORE', timeouts, first)
if known then return take(math.max(until_ms, known)) or 1 end
local free = count_at(free_key)
if type(free) == 'table' then return free end
local declared = tonumber(ARGV[3])
if not free then
  if declared == 0 then return -1 end
  free = declared
  redis.call('SET', free_key, free)
end
local reclaimed = semaphore_reclaim(free_key, timeouts, now)
free = free + reclaimed
if declared ~= 0 then
  local total = free + redis.call('ZCARD', timeouts)
  if total ~= declared then return {-1, total, declared} end
end
local is_next = true
if heartbeat ~= 0 then
  local oldest = redis.call('ZRANGE', alive, 0, 999, 'WITHSCORES')
  for i = 1, #oldest, 2 do
    if tonumber(oldest[i + 1]) > now then break end
    redis.call('ZREM', queue, oldest[i])
    redis.call('ZREM', alive, oldest[i])
  end
  if heartbeat > 0 then
    local time = redis.call('TIME')
    local came = time[1] * 1000000 + time[2]
    for i = 7 + wanted, #ARGV do
      if not redis.call('ZSCORE', queue, ARGV[i]) then
        redis.call('ZADD', queue, string.format('%.0f', came + i), ARGV[i])
      end
      redis.call('ZADD', alive, now + heartbeat, ARGV[i])
    end
    redis.call('PEXPIRE', queue, heartbeat * 2)
    redis.call('PEXPIRE', alive, heartbeat * 2)
  end
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  is_next = not head or head == ARGV[7 + wanted]
end
if is_next and free >= wanted then
  redis.call('INCRBY', free_key, -wanted)
  local refused = take(until_ms)
  if refused then
    redis.call('INCRBY', free_key, wanted)
    return refused
  end
  free = free - wanted
  if heartbeat > 0 then
    redis.call('ZREM', queue, ARGV[7 + wanted])
    redis.call('ZREM', alive, ARGV[7 + wanted])
  end
  local has_more = reclaimed > 0 or (heartbeat > 0 and redis.call('EXISTS', queue) == 1)
  if free > 0 and has_more then redis.pcall(ARGV[5], ARGV[4], free) end
  return 1
end
local ends = redis.call('ZRANGE', timeouts, 0, 0, 'WITHSCORES')[2]
return {free, ends and math.max(0, ends - now) or -1}
