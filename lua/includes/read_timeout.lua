-- The key whose life is the lease of one read hold, as Redisson names it. The keys of other holders are found by this
-- name and are not in KEYS; they share the slot of the lock.
local function read_timeout(lock, holder, hold)
  if not string.find(lock, '{', 1, true) then lock = '{' .. lock .. '}' end
  return lock .. ':' .. holder .. ':rwlock_timeout:' .. hold
end
