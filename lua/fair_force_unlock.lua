--[[
  fair_force_unlock: hand the lock to the head of the queue, whoever holds it.
  KEYS[1]  lock      HASH  holder -> hold count, one field while held
  KEYS[2]  queue     LIST  waiters, the next one first
  KEYS[3]  timeouts  ZSET  waiter -> server ms until which Redisson keeps it
  KEYS[4]  alive     ZSET  waiter of ours -> server ms until which its heartbeat lasts
  KEYS[5]  token     STRING  last fencing token of the lock; only if its users have the right to it
  ARGV[1]  channel   where waiters listen, before :waiter
  ARGV[2]  publish   PUBLISH or SPUBLISH
  ARGV[3]  retention  ms for which the counter of the tokens is kept; 0: for ever
  Reply    1 it was held, and is no more by that holder | 0 it was free
]]
if exclusive_lease(KEYS[1]) == -2 then return 0 end
redis.call('DEL', KEYS[1])
fair_tell(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], ARGV[2], KEYS[5], ARGV[3])
return 1
