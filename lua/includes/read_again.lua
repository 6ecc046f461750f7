-- uses: read_leases

-- Sets the number of read holds of a holder that reads or writes already.
local function read_again(lock, holder, hold_count, lease, remaining)
  -- First: it is a write that a full server accepts, and after it the others too.
  redis.call('PEXPIRE', lock, math.max(remaining, tonumber(lease)))
  read_leases(lock, holder, hold_count, lease)
  redis.call('HSET', lock, holder, hold_count)
end
