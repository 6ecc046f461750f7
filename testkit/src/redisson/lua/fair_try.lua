--[[
  fair_try: one attempt without a wait, which never queues.
  KEYS[1]  lock   KEYS[2]  queue LIST   KEYS[3]  deadlines ZSET
  ARGV[1]  lease_ms   ARGV[2]  holder   ARGV[3]  wait_ms   ARGV[4]  the client's time, epoch ms
  Reply    nil granted | 1 held by another, or another waiter's turn
]]
local lock, queue, deadlines = KEYS[1], KEYS[2], KEYS[3]
evict_stale(queue, deadlines, tonumber(ARGV[4]))
if take_or_enter(lock, queue, deadlines, ARGV[2], ARGV[1], tonumber(ARGV[3])) then return nil end
return 1
