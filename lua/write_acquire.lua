--[[
  write_acquire: let a holder write, or write once more, up to a given number of write holds.
  KEYS[1]  lock        HASH    mode -> read | write, holder -> read holds, holder:write -> write holds
  KEYS[2]  waiting     ZSET    waiter of ours -> see rw_wait
  KEYS[3]  token       STRING  last fencing token of the lock; read and written only with tokens
  ARGV[1]  holder
  ARGV[2]  hold_count  the number of write holds to reach
  ARGV[3]  lease_ms    lease from now; a longer one that already runs is kept
  ARGV[4]  tokens      how many fencing tokens come with the grant
  ARGV[5]  is_new      1 a new holder | 0 one that writes already
  ARGV[6]  heartbeat   ms for which new readers let it go first; 0 does not wait
  ARGV[7]  retention   ms for which the counter of the tokens is kept; 0: for ever
  Reply    nil held now | text held now, with this token and those that follow
           remaining_ms held elsewhere, or readers first | -3 no such hold
]]
local lock, waiting, holder = KEYS[1], KEYS[2], ARGV[1]
-- Fast path for a free lock without waiters, before the pieces that it does not need.
if ARGV[5] == '1' and ARGV[4] == '0' and redis.pcall('EXISTS', lock, waiting) == 0 then
  -- As `grant` does.
  local writer = holder .. ':write'
  redis.call('HSET', lock, writer, ARGV[2], 'mode', 'write')
  local leased = redis.pcall('PEXPIRE', lock, ARGV[3])
  if leased ~= 1 then
    redis.call('HDEL', lock, writer, 'mode')
    return leased
  end
  return
end
-- uses: write_refusal, rw_wait, rw_wait_over, grant, next_token, keep_token
local why, remaining, waits = write_refusal(lock, waiting, holder, ARGV[5] == '1')
if why then
  local heartbeat_ms = tonumber(ARGV[6])
  if why ~= -3 and heartbeat_ms > 0 then rw_wait(waiting, holder, heartbeat_ms, 'write') end
  return why
end
local token, stays
if ARGV[4] ~= '0' then
  token, stays = next_token(KEYS[3], ARGV[4])
  if type(token) ~= 'string' then return token end
end
local refused = grant(lock, holder .. ':write', ARGV[2], ARGV[3], remaining, 'write')
if refused then return refused end
if waits then rw_wait_over(waiting, holder) end
if token then keep_token(KEYS[3], token, ARGV[4] - 1, ARGV[7], stays) end
return token
