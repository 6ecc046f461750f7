-- uses: read_timeout

-- Gives each of a holder's read holds at least this lease.
local function read_leases(lock, holder, hold_count, lease)
  local lease_ms = tonumber(lease)
  for hold = 1, hold_count do
    local key = read_timeout(lock, holder, hold)
    if redis.call('PTTL', key) < lease_ms then redis.call('SET', key, '1', 'PX', lease) end
  end
end
