--[[
  reentrant_acquire: take the lock for a holder, or enter it again, up to a given hold count.
  KEYS[1]  lock        HASH    holder -> hold count, one field while held
  KEYS[2]  token       STRING  last fencing token of the lock; read and written only with tokens
  ARGV[1]  holder
  ARGV[2]  hold_count  the count to reach: 1 takes a free lock, more needs a hold that exists
  ARGV[3]  lease_ms    lease from now; a longer one that already runs is kept
  ARGV[4]  tokens      how many fencing tokens come with the grant
  ARGV[5]  retention   ms for which their counter is kept; 0: for ever
  Reply    nil held now | text held now, with this token and those that follow
           remaining_ms held elsewhere | -3 no such hold
]]
-- Frequent cases come before the pieces that they do not need: each function that a script defines costs time.
local lock, holder, hold_count = KEYS[1], ARGV[1], ARGV[2]
local wants_token = ARGV[4] ~= '0'
if hold_count ~= '1' and not wants_token and redis.call('HEXISTS', lock, holder) == 1 then
  -- uses: lengthen
  -- First: it is a write that a full server accepts, and after it the other one too.
  lengthen(lock, ARGV[3])
  redis.call('HSET', lock, holder, hold_count)
  return
end
local remaining = redis.call('PTTL', lock)
if remaining == -2 then
  if hold_count ~= '1' then return -3 end
elseif redis.call('HEXISTS', lock, holder) == 0 then
  -- uses: must_be_lock
  must_be_lock(lock, remaining)
  if hold_count ~= '1' then return -3 end
  return remaining
end
if remaining == -2 and not wants_token then
  -- As `grant` does.
  redis.call('HSET', lock, holder, hold_count)
  local leased = redis.pcall('PEXPIRE', lock, ARGV[3])
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
  token, stays = next_token(KEYS[2], ARGV[4])
  if type(token) ~= 'string' then return token end
end
local refused = grant(lock, holder, hold_count, ARGV[3], remaining)
if refused then return refused end
if token then keep_token(KEYS[2], token, ARGV[4] - 1, ARGV[5], stays) end
return token
