-- uses: exclusive_lease, fair_handover, fair_leave
--[[
  fair_force_unlock: end the hold of any holder, or of this holder, and hand the lock over to the head of the queue.
  A holder that only waits is removed from the queue.
  KEYS[1]  lock      HASH    holder -> hold count, one field while held
  KEYS[2]  queue     LIST    waiters, the next one first
  KEYS[3]  timeouts  ZSET    waiter -> server ms until which Redisson keeps it
  KEYS[4]  alive     ZSET    waiter of ours -> until when its place is kept; see mark_place
  KEYS[5]  token     STRING  last fencing token of the lock; only if its users have the right to it
  ARGV[1]  channel    where waiters listen, before :waiter
  ARGV[2]  publish    PUBLISH or SPUBLISH
  ARGV[3]  retention  ms for which the counter of the tokens is kept; 0: for ever
  ARGV[4]  holder     the only holder whose hold or place is ended; none: any holder
  Reply    1 the hold or place is ended | 0 there was none
]]
local lock, holder = KEYS[1], ARGV[4]
local q = {
  lock = lock, queue = KEYS[2], timeouts = KEYS[3], alive = KEYS[4],
  channel = ARGV[1], publish = ARGV[2], token = KEYS[5], retention = ARGV[3],
}
-- Fails, before anything is written, if the key holds something else: a holder's name may be anything.
local is_held = exclusive_lease(lock) ~= -2
if holder then is_held = is_held and redis.call('HEXISTS', lock, holder) == 1 end
if is_held then
  redis.call('DEL', lock)
  fair_handover(q)
  return 1
end
return holder and fair_leave(q, holder) and 1 or 0
