-- Gives an existing key at least this lease.
local function lengthen(key, lease)
  -- Redis 6 has no GT. With GT nothing is set if there is no lease, which counts as infinite, or an equal one.
  if redis.REDIS_VERSION_NUM and redis.call('PEXPIRE', key, lease, 'GT') == 1 then return end
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(lease)))
end
