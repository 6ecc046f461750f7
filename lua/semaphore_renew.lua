-- uses: is_refused, server_ms
--[[
  semaphore_renew: lengthen the leases of many permits in one call.
  KEYS[i]     timeouts  ZSET  permit -> server ms until which it is taken
  ARGV[2i-1]  permit    of KEYS[i]
  ARGV[2i]    lease_ms  lease from now; a longer one that already runs is kept
  Reply       {1 | 0, ...}  for each key: renewed | this permit is not taken
]]
local now, reply, has_room = server_ms(), {}, false
for i, timeouts in ipairs(KEYS) do
  -- A key that holds something else has no permit of ours, and must not stop the others.
  local score = redis.pcall('ZSCORE', timeouts, ARGV[2 * i - 1])
  if type(score) == 'string' then
    -- A full server accepts this write, which changes nothing, and all later ones after it.
    if not has_room then redis.pcall('ZREM', timeouts, '') end
    has_room = true
    redis.call('ZADD', timeouts, math.max(score, now + ARGV[2 * i]), ARGV[2 * i - 1])
    reply[i] = 1
  elseif is_refused(score) then
    return score
  else
    reply[i] = 0
  end
end
return reply
