-- uses: must_be_lock

-- The reply to a release of a hold that does not exist. Fails if the key holds something else.
local function not_held(lock)
  local remaining = redis.call('PTTL', lock)
  if remaining ~= -2 then must_be_lock(lock, remaining) end
  return -1
end
