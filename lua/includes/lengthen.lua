-- Gives a key that is there at least this lease.
local function lengthen(key, lease)
  -- Redis 6 cannot compare. Nor does a lease that there is none of, or that is as long, count as shorter.
  if redis.REDIS_VERSION_NUM and redis.call('PEXPIRE', key, lease, 'GT') == 1 then return end
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(lease)))
end
