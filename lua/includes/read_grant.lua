-- uses: read_lease, grant, sweep_readers

-- Lets a holder read. Returns nothing, or an error as `grant` does. Takes out dead readers if some
-- fields of others were `seen`.
local function read_grant(lock, holder, lease, remaining, seen)
  -- First: what is left of it, if the rest is refused, expires by itself.
  read_lease(lock, holder, lease)
  local refused = grant(lock, holder, lease, remaining, 'read')
  if seen and not refused then sweep_readers(lock, seen) end
  return refused
end
