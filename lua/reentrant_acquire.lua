--[[
  reentrant_acquire: take the lock for a holder.
  KEYS[1]  lock        HASH    holder -> hold count, one field while held
  KEYS[2]  token       STRING  last fencing token of the lock; read and written only with tokens
  ARGV[1]  holder
  ARGV[2]  lease_ms   lease from now; a longer one that already runs is kept
  ARGV[3]  tokens     how many fencing tokens come with the grant
  ARGV[4]  retention  ms for which their counter is kept; 0: for ever
  Reply    nil held now | text held now, with this token and the spare ones after it
           remaining_ms held elsewhere
]]
-- Frequent cases come before the pieces that they do not need: each function that a script defines costs time.
local lock, holder, lease = KEYS[1], ARGV[1], ARGV[2]
local wants_token = ARGV[3] ~= '0'
local remaining = redis.call('PTTL', lock)
if remaining ~= -2 and redis.call('HEXISTS', lock, holder) == 0 then
  -- uses: must_be_lock
  must_be_lock(lock, remaining)
  return remaining
end
if remaining == -2 and not wants_token then
  -- As `grant` does.
  redis.call('HSET', lock, holder, '1')
  local leased = redis.pcall('PEXPIRE', lock, lease)
  if leased ~= 1 then
    redis.call('HDEL', lock, holder)
    return leased
  end
  return
end
-- uses: grant, next_token, keep_token
local token, stays
if wants_token then
  -- Everything that can be refused is read before the first write.
  token, stays = next_token(KEYS[2], ARGV[3])
  if type(token) ~= 'string' then return token end
end
local refused = grant(lock, holder, lease, remaining)
if refused then return refused end
if token then keep_token(KEYS[2], token, ARGV[3] - 1, ARGV[4], stays) end
return token
