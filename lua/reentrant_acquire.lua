--[[
  reentrant_acquire: take the lock for a holder, or enter it again, up to a given hold count.
  KEYS[1]  lock        HASH    holder -> hold count, one field while held
  KEYS[2]  token       STRING  last fencing token of the lock; read and written only if fenced
  ARGV[1]  holder
  ARGV[2]  hold_count  the count to reach: 1 takes a free lock, more needs a hold that exists
  ARGV[3]  lease_ms    lease from now; a longer one that already runs is kept
  ARGV[4]  fenced      1: a token with the grant
  Reply    nil held now | text held now, with this token
           remaining_ms (-1: without end) held elsewhere | -3 no such hold
]]
local lock, holder, hold_count = KEYS[1], ARGV[1], ARGV[2]
local why, remaining = refusal(lock, holder, hold_count)
if why then return why end
local token
if ARGV[4] == '1' then
  -- Everything that can be refused is read before the first write.
  token = next_token(KEYS[2])
  if type(token) ~= 'string' then return token end
end
local refused = grant(lock, holder, hold_count, ARGV[3], remaining)
if refused then return refused end
if token then redis.call('SET', KEYS[2], token) end
return token
