-- Sets the number of a holder's read holds. Returns nothing, or an error as `grant` does.
local function read_grant(lock, holder, hold_count, lease, remaining)
  -- First: what is left of it, if the rest is refused, ends by itself.
  read_leases(lock, holder, hold_count, lease)
  return grant(lock, holder, hold_count, lease, remaining, 'read')
end
