-- uses: read_timeout
--[[
  read_acquire: let a holder read.
  KEYS[1]  lock        HASH    mode -> read | write, holder -> read holds, holder:write -> write holds
  KEYS[2]  waiting     ZSET    waiter of ours -> see rw_wait
  KEYS[3]  token       STRING  last fencing token of the lock; read and written only with tokens
  ARGV[1]  holder
  ARGV[2]  lease_ms   lease from now; a longer one that already runs is kept
  ARGV[3]  tokens     1: a fencing token with the grant
  ARGV[4]  heartbeat  ms for which it is noted as waiting; 0: it does not wait
  ARGV[5]  waited_ms  how long it has waited
  ARGV[6]  retention  ms for which the counter of the tokens is kept; 0: for ever
  Reply    nil held now | text held now, with this token
           remaining_ms (-1: unknown) held elsewhere, or writers first
]]
local lock, waiting, holder, lease = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
-- Fast path for a free lock without waiters, before the pieces that it does not need.
if ARGV[3] == '0' and redis.pcall('EXISTS', lock, waiting) == 0 then
  -- As `read_grant` does.
  redis.call('SET', read_timeout(lock, holder, '1'), '1', 'PX', lease)
  redis.call('HSET', lock, holder, '1', 'mode', 'read')
  local leased = redis.pcall('PEXPIRE', lock, lease)
  if leased ~= 1 then
    redis.call('HDEL', lock, holder, 'mode')
    return leased
  end
  return
end
-- uses: read_refusal, rw_wait, read_grant, read_begins, next_token, keep_token
local why, remaining, anybody_waits, seen = read_refusal(lock, waiting, holder, tonumber(ARGV[5]))
if why then
  local heartbeat_ms = tonumber(ARGV[4])
  if heartbeat_ms > 0 then rw_wait(waiting, holder, heartbeat_ms, 'read') end
  return why
end
local token, stays
if ARGV[3] == '1' then
  token, stays = next_token(KEYS[3])
  if type(token) ~= 'string' then return token end
end
local refused = read_grant(lock, holder, lease, remaining, seen)
if refused then return refused end
if anybody_waits then read_begins(waiting, holder) end
if token then keep_token(KEYS[3], token, 0, ARGV[6], stays) end
return token
