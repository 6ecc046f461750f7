-- Sets the number of a holder's read holds. Returns nothing, or an error as `grant` does. Takes out
-- dead readers if some fields of others were `seen`.
local function read_grant(lock, holder, hold_count, lease, remaining, is_new, seen)
  if not is_new then
    -- First: it is a write that a full server accepts, and after it the others too.
    redis.call('PEXPIRE', lock, math.max(remaining, tonumber(lease)))
    read_leases(lock, holder, hold_count, lease)
    redis.call('HSET', lock, holder, hold_count)
    return
  end
  -- First: what is left of it, if the rest is refused, ends by itself.
  read_leases(lock, holder, hold_count, lease)
  local refused = grant(lock, holder, hold_count, lease, remaining, 'read')
  if seen and not refused then sweep_readers(lock, seen) end
  return refused
end
