-- uses: read_timeout
--[[
  read_acquire: let a holder read, or read once more, up to a given number of read holds.
  KEYS[1]  lock        HASH    mode -> read | write, holder -> read holds, holder:write -> write holds
  KEYS[2]  waiting     ZSET    waiter of ours -> see rw_wait
  KEYS[3]  token       STRING  last fencing token of the lock; read and written only with tokens
  ARGV[1]  holder
  ARGV[2]  hold_count  the number of read holds to reach
  ARGV[3]  lease_ms    lease from now; a longer one that already runs is kept
  ARGV[4]  tokens      1: a fencing token with the grant
  ARGV[5]  is_new      1 a new holder | 0 one that reads or writes already
  ARGV[6]  heartbeat   ms for which it is noted that it waits; 0 does not wait
  ARGV[7]  waited_ms   how long it has waited
  ARGV[8]  retention   ms for which the counter of the tokens is kept; 0: for ever
  Reply    nil held now | text held now, with this token
           remaining_ms (-1: unknown) held elsewhere, or writers first | -3 no such hold
]]
local lock, waiting, holder = KEYS[1], KEYS[2], ARGV[1]
local hold_count, lease, is_new = ARGV[2], ARGV[3], ARGV[5] == '1'
-- Fast path for a free lock without waiters, before the pieces that it does not need.
if is_new and hold_count == '1' and ARGV[4] == '0'
  and redis.pcall('EXISTS', lock, waiting) == 0 then
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
-- uses: read_refusal, rw_wait, read_grant, read_again, read_begins, next_token, keep_token
local why, remaining, anybody_waits, seen, had =
  read_refusal(lock, waiting, holder, is_new, tonumber(ARGV[7]))
if why then
  local heartbeat_ms = tonumber(ARGV[6])
  if why ~= -3 and heartbeat_ms > 0 then rw_wait(waiting, holder, heartbeat_ms, 'read') end
  return why
end
local token, stays
if ARGV[4] == '1' then
  token, stays = next_token(KEYS[3])
  if type(token) ~= 'string' then return token end
end
if is_new then
  local refused = read_grant(lock, holder, hold_count, lease, remaining, seen)
  if refused then return refused end
else
  read_again(lock, holder, hold_count, lease, remaining, had)
end
if anybody_waits then read_begins(waiting, holder) end
if token then keep_token(KEYS[3], token, 0, ARGV[8], stays) end
return token
