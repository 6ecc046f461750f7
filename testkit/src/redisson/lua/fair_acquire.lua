--[[
  fair_acquire: one attempt of a waiter, which is queued unless it already is.
  KEYS[1]  lock   KEYS[2]  queue LIST   KEYS[3]  deadlines ZSET
  ARGV[1]  lease_ms   ARGV[2]  holder   ARGV[3]  wait_ms   ARGV[4]  the client's time, epoch ms
  Reply    nil granted | the time to sleep in ms; negative: no limit
]]
local lock, queue, deadlines = KEYS[1], KEYS[2], KEYS[3]
local lease_ms, holder = ARGV[1], ARGV[2]
local wait_ms, now = tonumber(ARGV[3]), tonumber(ARGV[4])
evict_stale(queue, deadlines, now)
if take_or_enter(lock, queue, deadlines, holder, lease_ms, wait_ms) then return nil end
-- 0 while the lock is free and not the caller's turn: the waiter asks again without a pause.
if redis.call('ZSCORE', deadlines, holder) then return math.max(0, redis.call('PTTL', lock)) end
local last = redis.call('LINDEX', queue, -1)
local deadline = last and last ~= holder and redis.call('ZSCORE', deadlines, last)
local ttl
if deadline then ttl = tonumber(deadline) - now else ttl = redis.call('PTTL', lock) end
if redis.call('ZADD', deadlines, ttl + wait_ms + now, holder) == 1 then
  redis.call('RPUSH', queue, holder)
end
return ttl
