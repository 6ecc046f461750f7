-- uses: must_be_lock

-- Why a holder cannot have an exclusive lock: what is left of the lease of its holder; nil if it can. Then what is left
-- of the lease of the lock, and its holder. Callers that know the lease pass it as `remaining`.
local function refusal(lock, holder, remaining)
  remaining = remaining or redis.call('PTTL', lock)
  if remaining == -2 or redis.call('HEXISTS', lock, holder) == 1 then return nil, remaining end
  return remaining, remaining, must_be_lock(lock, remaining)[1]
end
