-- uses: read_lease, grant, sweep_readers

-- Lets a holder read. Returns nothing, or an error as `grant` does. Removes dead readers if the caller has `seen`
-- fields of others.
local function read_grant(lock, holder, lease, remaining, seen)
  -- First, because this key expires by itself if the rest is refused.
  read_lease(lock, holder, lease)
  local refused = grant(lock, holder, lease, remaining, 'read')
  if seen and not refused then sweep_readers(lock, seen) end
  return refused
end
