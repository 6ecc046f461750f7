-- uses: fair_release_hold
--[[
  fair_release: lower a holder's hold count to a given number; 0 hands the lock over to the head of
  the queue, or takes a holder that only waits out of the queue.
  KEYS[1]  lock        HASH    holder -> hold count, one field while held
  KEYS[2]  queue       LIST    waiters, the next one first
  KEYS[3]  timeouts    ZSET    waiter -> server ms until which Redisson keeps it
  KEYS[4]  alive       ZSET    waiter of ours -> until when its place is kept; see mark_place
  KEYS[5]  token       STRING  last fencing token of the lock; only if its users have the right to it
  ARGV[1]  holder
  ARGV[2]  hold_count  the count to leave
  ARGV[3]  lease_ms    lease to keep at least, if the count is not 0
  ARGV[4]  channel     where waiters listen, before :waiter
  ARGV[5]  publish     PUBLISH or SPUBLISH
  ARGV[6]  retention   ms for which the counter of the tokens is kept; 0: for ever
  Reply    how many connections received that it is theirs, or their turn
           -1 neither held nor waited for
]]
local q = {
  lock = KEYS[1], queue = KEYS[2], timeouts = KEYS[3], alive = KEYS[4],
  channel = ARGV[4], publish = ARGV[5], token = KEYS[5], retention = ARGV[6],
}
return fair_release_hold(q, ARGV[1], ARGV[2], ARGV[3])
