-- uses: rw_mode, read_timeout
--[[
  rw_inspect: the readers and writers, their hold counts, and their remaining leases.
  KEYS[1]  lock  HASH  mode -> read | write, holder -> read holds, holder:write -> write holds
  Reply    {holder, read | write, hold_count, remaining_ms, ...}  four for each kind of hold
]]
local lock, reply = KEYS[1], {}
local function add(...)
  for _, what in ipairs({ ... }) do reply[#reply + 1] = what end
end
if not rw_mode(lock) then return reply end
local fields = redis.call('HGETALL', lock)
for i = 1, #fields, 2 do
  local field, holds = fields[i], tonumber(fields[i + 1])
  local writer = string.match(field, '^(.*):write$')
  if writer and holds then
    add(writer, 'write', fields[i + 1], redis.call('PTTL', lock))
  elseif holds then
    -- A reader whose leases have all expired is dead. The next writer that asks removes it.
    local remaining = -2
    for hold = 1, holds do
      remaining = math.max(remaining, redis.call('PTTL', read_timeout(lock, field, hold)))
    end
    if remaining ~= -2 then add(field, 'read', fields[i + 1], remaining) end
  end
end
return reply
