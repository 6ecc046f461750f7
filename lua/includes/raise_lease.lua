-- Makes the lease of `key` end no sooner than `lease_ms` from now; never shortens a longer one.
-- `remaining` is what PTTL said of the key, which exists: -1 means that it had no lease at all.
-- PEXPIRE is always called: it is the first write of its caller, one that a full server accepts,
-- and after it the server accepts the caller's other writes too.
local function raise_lease(key, lease_ms, remaining)
  lease_ms = tonumber(lease_ms)
  if remaining > lease_ms then lease_ms = remaining end
  redis.call('PEXPIRE', key, lease_ms)
end
