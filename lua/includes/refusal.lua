-- uses: must_be_lock

-- Nil if a holder can have an exclusive lock, otherwise the rest of the lease of the present holder. Then the rest of
-- the lock's lease, and the present holder. Callers that know that lease pass it as `remaining`.
local function refusal(lock, holder, remaining)
  remaining = remaining or redis.call('PTTL', lock)
  if remaining == -2 or redis.call('HEXISTS', lock, holder) == 1 then return nil, remaining end
  return remaining, remaining, must_be_lock(lock, remaining)[1]
end
