-- uses: read_timeout

-- Gives a holder's read hold at least this lease.
local function read_lease(lock, holder, lease)
  local key = read_timeout(lock, holder, 1)
  if redis.call('PTTL', key) < tonumber(lease) then redis.call('SET', key, '1', 'PX', lease) end
end
