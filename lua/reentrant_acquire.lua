--[[
  reentrant_acquire: take the lock for a holder, or enter it again, up to a given hold count.
  KEYS[1]  lock        HASH    holder -> hold count, one field while held
  KEYS[2]  token       STRING  last fencing token of the lock; read and written only if fenced
  ARGV[1]  holder
  ARGV[2]  hold_count  the count to reach: 1 takes a free lock, more needs a hold that exists
  ARGV[3]  lease_ms    lease from now; a longer one that already runs is kept
  ARGV[4]  fence       0 no token | 1 a token with a new grant | 2 a new token now
  Reply    {1, token or ''} held now | {0, remaining_ms} held elsewhere | {-1} no such hold
]]
local lock, holder, hold_count, lease_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local remaining = redis.call('PTTL', lock)
if remaining == -2 then
  if hold_count ~= '1' then return {-1} end
  redis.call('HSET', lock, holder, 1)
  redis.call('PEXPIRE', lock, lease_ms)
  if ARGV[4] == '0' then return {1, ''} end
  return {1, next_token(KEYS[2])}
end
if redis.call('HEXISTS', lock, holder) == 0 then
  if hold_count ~= '1' then return {-1} end
  return {0, remaining}
end
raise_lease(lock, lease_ms, remaining)
redis.call('HSET', lock, holder, hold_count)
if ARGV[4] == '0' then return {1, ''} end
-- A repeated grant keeps the token it was given: nobody else was granted the lock since.
if ARGV[4] == '1' then return {1, redis.call('GET', KEYS[2]) or next_token(KEYS[2])} end
return {1, next_token(KEYS[2])}
