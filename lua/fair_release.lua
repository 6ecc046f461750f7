-- uses: fair_release_hold
--[[
  fair_release: end a hold and hand the lock over to the head of the queue, or remove a holder that only waits from
  the queue.
  KEYS[1]  lock        HASH    holder -> hold count, one field while held
  KEYS[2]  queue       LIST    waiters, the next one first
  KEYS[3]  timeouts    ZSET    waiter -> server ms until which Redisson keeps it
  KEYS[4]  alive       ZSET    waiter of ours -> until when its place is kept; see mark_place
  KEYS[5]  token       STRING  last fencing token of the lock; only if its users have the right to it
  ARGV[1]  holder
  ARGV[2]  channel    where waiters listen, before :waiter
  ARGV[3]  publish    PUBLISH or SPUBLISH
  ARGV[4]  retention  ms for which the counter of the tokens is kept; 0: for ever
  ARGV[i]  used       from 5: waiters that had the lock under this hold; they leave the queue
  Reply    how many connections received the message that the lock is theirs, or that it is their turn
           -1 neither held nor waited for
]]
local q = {
  lock = KEYS[1], queue = KEYS[2], timeouts = KEYS[3], alive = KEYS[4],
  channel = ARGV[2], publish = ARGV[3], token = KEYS[5], retention = ARGV[4],
}
local used = {}
for i = 5, #ARGV do used[#used + 1] = ARGV[i] end
return fair_release_hold(q, ARGV[1], unpack(used))
