-- uses: rw_mode, read_timeout, tell, rw_release_hold
--[[
  rw_force_unlock: end all holds of one side, or all holds of this holder. A holder that only waits is removed
  from the waiters.
  KEYS[1]  lock     HASH  mode -> read | write, holder -> read holds, holder:write -> write holds
  KEYS[2]  waiting  ZSET  waiter of ours -> see rw_wait; only with a holder
  ARGV[1]  mode     read | write: the side; of a holder both are ended
  ARGV[2]  channel  where waiters listen
  ARGV[3]  publish  PUBLISH or SPUBLISH
  ARGV[4]  holder   the only holder whose holds are ended; none: all holders
  Reply    1 the holds or the wait are ended | 0 it was not held in this mode, or not by this holder
]]
local lock, holder = KEYS[1], ARGV[4]
-- Fails, before anything is written, if the key holds something else: a holder's name may be anything.
local mode = rw_mode(lock)
if holder then
  local reply, message = rw_release_hold(lock, KEYS[2], holder)
  if message then tell(ARGV[3], ARGV[2], message) end
  return reply == -1 and 0 or 1
end
if mode ~= ARGV[1] then return 0 end
local fields = redis.call('HGETALL', lock)
for i = 1, #fields, 2 do
  for hold = 1, tonumber(fields[i + 1]) or 0 do
    redis.call('DEL', read_timeout(lock, fields[i], hold))
  end
end
redis.call('DEL', lock)
tell(ARGV[3], ARGV[2], '1')
return 1
