--[[
  fair_acquire: take the lock for a holder, if it is the holder's turn.
  KEYS[1]  lock        HASH    holder -> hold count, one field while held
  KEYS[2]  queue       LIST    waiters, the next one first
  KEYS[3]  timeouts    ZSET    waiter -> server ms until which Redisson keeps it
  KEYS[4]  alive       ZSET    waiter of ours -> until when its place is kept; see mark_place
  KEYS[5]  token       STRING  last fencing token of the lock; read and written only with tokens
  ARGV[1]  holder
  ARGV[2]  lease_ms   lease from now; a longer one that already runs is kept
  ARGV[3]  tokens     1: a fencing token with the grant
  ARGV[4]  heartbeat  ms for which its place in the queue is kept from now; 0: it takes no place
  ARGV[5]  on_turn    wake | grant | grant_fenced: what it wants on its turn; see mark_place
  ARGV[6]  channel    where waiters listen, before :waiter
  ARGV[7]  publish    PUBLISH or SPUBLISH
  ARGV[8]  retention  ms for which the counter of the tokens is kept; 0: for ever
  Reply    nil held now | text held now, with this token
           remaining_ms (-1: unknown) held elsewhere, or not its turn
           {remaining_ms, until_ms} the same, with a place in the queue that is kept until then
           {remaining_ms, until_ms, ahead} the same, the place is new and directly behind this waiter or holder
]]
local lock, queue, timeouts, alive = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local holder, lease, heartbeat_ms = ARGV[1], ARGV[2], tonumber(ARGV[4])
local left = redis.call('PTTL', lock)
-- Fast path for a free lock without waiters, before the pieces that it does not need.
if left == -2 and ARGV[3] ~= '1' and redis.pcall('EXISTS', queue) == 0 then
  -- As `grant` does.
  redis.call('HSET', lock, holder, '1')
  local leased = redis.pcall('PEXPIRE', lock, lease)
  if leased ~= 1 then
    redis.call('HDEL', lock, holder)
    return leased
  end
  return
end
-- uses: fair_refusal, fair_enqueue, fair_dequeue, grant, next_token, keep_token
local why, remaining, head, to_wake, held_by = fair_refusal(lock, queue, timeouts, alive, holder, left)
if to_wake then redis.pcall(ARGV[7], ARGV[6] .. ':' .. to_wake, '0') end
if why then
  if heartbeat_ms > 0 then
    local q = { lock = lock, queue = queue, timeouts = timeouts, alive = alive }
    return { why, fair_enqueue(q, holder, heartbeat_ms, ARGV[5], remaining, held_by) }
  end
  return why
end
local token, stays
if ARGV[3] == '1' then
  token, stays = next_token(KEYS[5])
  if type(token) ~= 'string' then return token end
end
-- Before the grant, so that a user without the right to the queue gets no lock.
if head then fair_dequeue(queue, timeouts, alive, holder) end
local refused = grant(lock, holder, lease, remaining)
if refused then return refused end
if token then keep_token(KEYS[5], token, 0, ARGV[8], stays) end
return token
