-- uses: rw_mode, read_timeout, tell
--[[
  rw_force_unlock: end all holds of one side, whoever has them.
  KEYS[1]  lock     HASH  mode -> read | write, holder -> read holds, holder:write -> write holds
  ARGV[1]  mode     read | write: the side
  ARGV[2]  channel  where waiters listen
  ARGV[3]  publish  PUBLISH or SPUBLISH
  Reply    1 it was held and is free now | 0 it was not held in this mode
]]
local lock = KEYS[1]
if rw_mode(lock) ~= ARGV[1] then return 0 end
local fields = redis.call('HGETALL', lock)
for i = 1, #fields, 2 do
  for hold = 1, tonumber(fields[i + 1]) or 0 do
    redis.call('DEL', read_timeout(lock, fields[i], hold))
  end
end
redis.call('DEL', lock)
tell(ARGV[3], ARGV[2], '1')
return 1
