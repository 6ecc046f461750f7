-- uses: read_timeout, tell
--[[
  rw_release: set the counts of a hold: lower, or one write hold turned into a read hold. 0 and 0
  give it up, or take a holder that only waits out of those who wait.
  KEYS[1]  lock         HASH  mode -> read | write, holder -> read holds, holder:write -> write holds
  KEYS[2]  waiting      ZSET  waiter of ours -> see rw_wait
  ARGV[1]  holder
  ARGV[2]  write_count  the number of write holds to leave
  ARGV[3]  read_count   the number of read holds to leave
  ARGV[4]  lease_ms     lease to keep at least, if one of them is not 0
  ARGV[5]  channel      where waiters listen
  ARGV[6]  publish      PUBLISH or SPUBLISH
  Reply    how many connections received that others may enter | -1 neither held nor waited for
]]
local lock, waiting, holder = KEYS[1], KEYS[2], ARGV[1]
local is_over = ARGV[2] == '0' and ARGV[3] == '0'
local held = redis.call('HMGET', lock, holder, holder .. ':write')
local fields = is_over and (held[1] or held[2]) and redis.call('HLEN', lock)
-- Its one hold and the mode are all there is: the lock goes, as by `rw_release_hold`. Before the pieces that
-- are not needed for it.
local message
if fields == 2 and held[1] == '1' then
  redis.call('DEL', lock, read_timeout(lock, holder, '1'))
  message = '0'
elseif fields == 2 and held[2] then
  redis.call('DEL', lock)
  message = '1'
end
if message == '0' or message and redis.pcall('EXISTS', waiting) == 0 then
  return tell(ARGV[6], ARGV[5], message)
end
-- uses: write_ends, rw_release_hold
local reply
if message then
  -- A user without the right to note it still frees the lock.
  pcall(write_ends, waiting)
else
  reply, message = rw_release_hold(
    lock, waiting, holder, tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], held, fields)
end
local receivers = message and tell(ARGV[6], ARGV[5], message) or 0
return reply or receivers
