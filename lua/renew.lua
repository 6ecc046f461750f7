-- uses: is_refused, lengthen
--[[
  renew: lengthen the leases of many holds in one call.
  KEYS[i]       lock      HASH  holder -> hold count
  ARGV[2i-1]    holder    of KEYS[i]
  ARGV[2i]      lease_ms  lease from now; a longer one that already runs is kept
  Reply         {1 | 0, ...}  for each key: renewed | this holder does not hold it
]]
local reply = {}
for i, lock in ipairs(KEYS) do
  -- A key that holds something else is no hold of ours, and must not stop the others.
  local held = redis.pcall('HEXISTS', lock, ARGV[2 * i - 1])
  if held == 1 then
    lengthen(lock, ARGV[2 * i])
    reply[i] = 1
  elseif is_refused(held) then
    return held
  else
    reply[i] = 0
  end
end
return reply
