-- uses: read_leases, read_timeout

-- Sets the number of read holds of a holder that already reads or writes; `had` is its current number.
local function read_again(lock, holder, hold_count, lease, remaining, had)
  -- First: it is a write that a full server accepts, and after it the others too.
  redis.call('PEXPIRE', lock, math.max(remaining, tonumber(lease)))
  read_leases(lock, holder, hold_count, lease)
  -- It had more if this one was sent before another that was done first.
  for hold = hold_count + 1, tonumber(had) or 0 do redis.call('DEL', read_timeout(lock, holder, hold)) end
  redis.call('HSET', lock, holder, hold_count)
end
