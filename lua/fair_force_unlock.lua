-- uses: exclusive_lease, fair_handover
--[[
  fair_force_unlock: end the hold, whoever has it, and hand the lock over to the head of the queue.
  KEYS[1]  lock      HASH    holder -> hold count, one field while held
  KEYS[2]  queue     LIST    waiters, the next one first
  KEYS[3]  timeouts  ZSET    waiter -> server ms until which Redisson keeps it
  KEYS[4]  alive     ZSET    waiter of ours -> until when its place is kept; see mark_place
  KEYS[5]  token     STRING  last fencing token of the lock; only if its users have the right to it
  ARGV[1]  channel    where waiters listen, before :waiter
  ARGV[2]  publish    PUBLISH or SPUBLISH
  ARGV[3]  retention  ms for which the counter of the tokens is kept; 0: for ever
  Reply    1 it was held, and is no more by that holder | 0 it was free
]]
local lock = KEYS[1]
if exclusive_lease(lock) == -2 then return 0 end
redis.call('DEL', lock)
fair_handover({
  lock = lock, queue = KEYS[2], timeouts = KEYS[3], alive = KEYS[4],
  channel = ARGV[1], publish = ARGV[2], token = KEYS[5], retention = ARGV[3],
})
return 1
