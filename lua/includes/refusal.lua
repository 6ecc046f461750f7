-- Why a holder cannot have an exclusive lock at this count: what is left of the lease of whoever has
-- it (-1: without end), or -3 if the hold to be entered again does not exist; nil if it can.
-- Then what is left of the lease of the lock.
local function refusal(lock, holder, hold_count)
  local remaining = redis.call('PTTL', lock)
  local is_held = remaining ~= -2 and redis.call('HEXISTS', lock, holder) == 1
  if is_held or (remaining == -2 and hold_count == '1') then return nil, remaining end
  if hold_count ~= '1' then return -3, remaining end
  return remaining, remaining
end
