-- uses: read_timeout, tell
--[[
  rw_release: end a hold, or remove a holder that only waits from the waiters.
  KEYS[1]  lock     HASH  mode -> read | write, holder -> read holds, holder:write -> write holds
  KEYS[2]  waiting  ZSET  waiter of ours -> see rw_wait
  ARGV[1]  holder
  ARGV[2]  channel  where waiters listen
  ARGV[3]  publish  PUBLISH or SPUBLISH
  Reply    how many connections received the message that others may enter | -1 neither held nor waited for
]]
local lock, waiting, holder = KEYS[1], KEYS[2], ARGV[1]
local held = redis.call('HMGET', lock, holder, holder .. ':write')
local fields = (held[1] or held[2]) and redis.call('HLEN', lock)
-- If this hold and the mode are the only fields, the lock is deleted, as by `rw_release_hold`. Before the pieces that
-- this case does not need.
local message
if fields == 2 and held[1] == '1' then
  redis.call('DEL', lock, read_timeout(lock, holder, '1'))
  message = '0'
elseif fields == 2 and held[2] then
  redis.call('DEL', lock)
  message = '1'
end
if message == '0' or message and redis.pcall('EXISTS', waiting) == 0 then
  return tell(ARGV[3], ARGV[2], message)
end
-- uses: write_ends, rw_release_hold
local reply
if message then
  -- A user without the right to note it still frees the lock.
  pcall(write_ends, waiting)
else
  reply, message = rw_release_hold(lock, waiting, holder, held, fields)
end
local receivers = message and tell(ARGV[3], ARGV[2], message) or 0
return reply or receivers
