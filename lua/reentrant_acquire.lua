--[[
  reentrant_acquire: take the lock for a holder, or enter it again, up to a given hold count.
  KEYS[1]  lock        HASH    holder -> hold count, one field while held
  KEYS[2]  token       STRING  last fencing token of the lock; read and written only if fenced
  ARGV[1]  holder
  ARGV[2]  hold_count  the count to reach: 1 takes a free lock, more needs a hold that exists
  ARGV[3]  lease_ms    lease from now; a longer one that already runs is kept
  ARGV[4]  fence       0 no token | 1 a token with a new grant | 2 a new token now
  Reply    nil held now | text held now, with this token
           remaining_ms (-1: without end) held elsewhere | -3 no such hold
]]
local lock, holder, hold_count, fence = KEYS[1], ARGV[1], ARGV[2], ARGV[4]
local remaining = redis.call('PTTL', lock)
local is_new = remaining == -2
if is_new then
  if hold_count ~= '1' then return -3 end
elseif redis.call('HEXISTS', lock, holder) == 0 then
  if hold_count ~= '1' then return -3 end
  return remaining
end
-- Everything that can be refused is read before the first write.
local token, store_token
if fence ~= '0' then
  -- A repeated grant keeps the token it was given: nobody else was granted the lock since.
  if fence == '1' and not is_new then token = redis.call('GET', KEYS[2]) end
  if not token then
    token, store_token = next_token(KEYS[2]), true
    if type(token) ~= 'string' then return token end
  end
end
if is_new then
  redis.call('HSET', lock, holder, hold_count)
  -- Refused to a user without the right: a hold must not stay without a lease.
  local leased = redis.pcall('PEXPIRE', lock, ARGV[3])
  if leased ~= 1 then
    redis.call('HDEL', lock, holder)
    return leased
  end
else
  -- First: it is a write that a full server accepts, and after it the other one too.
  redis.call('PEXPIRE', lock, math.max(remaining, tonumber(ARGV[3])))
  redis.call('HSET', lock, holder, hold_count)
end
if store_token then redis.call('SET', KEYS[2], token) end
return token
