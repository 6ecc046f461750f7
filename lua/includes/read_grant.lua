-- uses: read_leases, grant, sweep_readers

-- Lets a new holder read. Returns nothing, or an error as `grant` does. Takes out dead readers if some
-- fields of others were `seen`.
local function read_grant(lock, holder, hold_count, lease, remaining, seen)
  -- First: what is left of it, if the rest is refused, expires by itself.
  read_leases(lock, holder, hold_count, lease)
  local refused = grant(lock, holder, hold_count, lease, remaining, 'read')
  if seen and not refused then sweep_readers(lock, seen) end
  return refused
end
