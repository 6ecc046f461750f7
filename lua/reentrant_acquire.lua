-- uses: must_be_lock, next_token, keep_token
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
-- What `refusal` and `grant` do, written out: each function a script defines costs time, and this is the
-- script that runs most often.
local lock, holder, hold_count = KEYS[1], ARGV[1], ARGV[2]
local remaining = redis.call('PTTL', lock)
local is_free = remaining == -2
if is_free then
  if hold_count ~= '1' then return -3 end
elseif redis.call('HEXISTS', lock, holder) == 0 then
  must_be_lock(lock, remaining)
  if hold_count ~= '1' then return -3 end
  return remaining
end
local token
if ARGV[4] ~= '0' then
  -- Everything that can be refused is read before the first write.
  token = next_token(KEYS[2])
  if type(token) ~= 'string' then return token end
end
if is_free then
  redis.call('HSET', lock, holder, hold_count)
  -- A hold must not stay without a lease.
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
if token then keep_token(KEYS[2], token, ARGV[4] - 1, ARGV[5]) end
return token
