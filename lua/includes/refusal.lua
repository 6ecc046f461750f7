-- uses: must_be_lock

-- Why a holder cannot have an exclusive lock at this count: what is left of the lease of its holder, or -3
-- if the hold to be entered again does not exist; nil if it can. Then what is left of the lease of the
-- lock. Callers that know the lease pass it as `remaining`.
local function refusal(lock, holder, hold_count, remaining)
  remaining = remaining or redis.call('PTTL', lock)
  if remaining == -2 then
    if hold_count == '1' then return nil, remaining end
  else
    if redis.call('HEXISTS', lock, holder) == 1 then return nil, remaining end
    must_be_lock(lock, remaining)
  end
  if hold_count ~= '1' then return -3, remaining end
  return remaining, remaining
end
