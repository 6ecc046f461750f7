-- Adds this field to a lock, with a count of 1, and lengthens the lease. `remaining` is the rest of that lease, -2 for
-- a free lock, which also gets this `mode` if it is a read-write lock. Returns nothing, or the error of a user who
-- lacks a right.
local function grant(lock, field, lease, remaining, mode)
  if remaining == -2 then
    if mode then
      redis.call('HSET', lock, field, '1', 'mode', mode)
    else
      redis.call('HSET', lock, field, '1')
    end
    -- A hold must not stay without a lease.
    local leased = redis.pcall('PEXPIRE', lock, lease)
    if leased ~= 1 then
      redis.call('HDEL', lock, field, 'mode')
      return leased
    end
  else
    -- First, because a full server accepts this write, and after it the other one.
    redis.call('PEXPIRE', lock, math.max(remaining, tonumber(lease)))
    redis.call('HSET', lock, field, '1')
  end
end
