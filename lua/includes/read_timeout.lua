-- The key whose time to live is the lease of one read hold, as Redisson names it. The keys of other holders are not in
-- KEYS, but share the slot of the lock.
local function read_timeout(lock, holder, hold)
  if not string.find(lock, '{', 1, true) then lock = '{' .. lock .. '}' end
  return lock .. ':' .. holder .. ':rwlock_timeout:' .. hold
end
