--[[
  write_acquire: let a holder write.
  KEYS[1]  lock        HASH    mode -> read | write, holder -> read holds, holder:write -> write holds
  KEYS[2]  waiting     ZSET    waiter of ours -> see rw_wait
  KEYS[3]  token       STRING  last fencing token of the lock; read and written only with tokens
  ARGV[1]  holder
  ARGV[2]  lease_ms   lease from now; a longer one that already runs is kept
  ARGV[3]  tokens     how many fencing tokens come with the grant
  ARGV[4]  heartbeat  ms for which new readers let it go first; 0: it does not wait
  ARGV[5]  retention  ms for which the counter of the tokens is kept; 0: for ever
  Reply    nil held now | text held now, with this token and the spare ones after it
           remaining_ms held elsewhere, or readers first
]]
local lock, waiting, holder, lease = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
-- Fast path for a free lock without waiters, before the pieces that it does not need.
if ARGV[3] == '0' and redis.pcall('EXISTS', lock, waiting) == 0 then
  -- As `grant` does.
  local writer = holder .. ':write'
  redis.call('HSET', lock, writer, '1', 'mode', 'write')
  local leased = redis.pcall('PEXPIRE', lock, lease)
  if leased ~= 1 then
    redis.call('HDEL', lock, writer, 'mode')
    return leased
  end
  return
end
-- uses: write_refusal, rw_wait, rw_wait_over, grant, next_token, keep_token
local why, remaining, waits = write_refusal(lock, waiting, holder)
if why then
  local heartbeat_ms = tonumber(ARGV[4])
  if heartbeat_ms > 0 then rw_wait(waiting, holder, heartbeat_ms, 'write') end
  return why
end
local token, stays
if ARGV[3] ~= '0' then
  token, stays = next_token(KEYS[3], ARGV[3])
  if type(token) ~= 'string' then return token end
end
local refused = grant(lock, holder .. ':write', lease, remaining, 'write')
if refused then return refused end
if waits then rw_wait_over(waiting, holder) end
if token then keep_token(KEYS[3], token, ARGV[3] - 1, ARGV[5], stays) end
return token
