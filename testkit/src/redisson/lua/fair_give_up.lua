--[[
  fair_give_up: leave the queue. Later waiters move up; no message is published.
  KEYS[1]  queue LIST   KEYS[2]  deadlines ZSET
  ARGV[1]  holder   ARGV[2]  wait_ms
]]
local queue, deadlines, holder, wait_ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
local passed = false
for _, waiter in ipairs(redis.call('LRANGE', queue, 0, -1)) do
  if passed then redis.call('ZINCRBY', deadlines, -wait_ms, waiter) end
  passed = passed or waiter == holder
end
redis.call('ZREM', deadlines, holder)
redis.call('LREM', queue, 0, holder)
