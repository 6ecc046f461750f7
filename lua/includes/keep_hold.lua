-- uses: not_held, grant

-- Sets the count of a hold that stays, and keeps at least this lease. Returns the reply of a release.
local function keep_hold(lock, holder, hold_count, lease)
  if redis.call('HEXISTS', lock, holder) == 0 then return not_held(lock) end
  grant(lock, holder, hold_count, lease, redis.call('PTTL', lock))
  return 0
end
