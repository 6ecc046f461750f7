-- uses: is_refused, lengthen, read_lease, sweep_readers
--[[
  rw_renew: lengthen the leases of many holds on read-write locks in one call.
  KEYS[i]       lock      HASH  mode, holder -> read holds, holder:write -> write holds
  ARGV[2i-1]    holder    of KEYS[i]
  ARGV[2i]      lease_ms  lease from now; a longer one that already runs is kept
  Reply         {1 | 0, ...}  for each key: renewed | this holder does not hold it
]]
local reply, sweep_fields = {}, 16
for i, lock in ipairs(KEYS) do
  local holder, lease = ARGV[2 * i - 1], ARGV[2 * i]
  -- A key that holds something else is no hold of ours, and must not stop the others.
  local held = redis.pcall('HMGET', lock, holder, holder .. ':write')
  if is_refused(held) then return held end
  reply[i] = 0
  if held[1] or held[2] then
    lengthen(lock, lease)
    if held[1] then read_lease(lock, holder, lease) end
    -- A few dead readers cost nothing.
    if held[1] and not held[2] and redis.call('HLEN', lock) > sweep_fields then
      sweep_readers(lock, redis.call('HRANDFIELD', lock, sweep_fields, 'WITHVALUES'))
    end
    reply[i] = 1
  end
end
return reply
