-- uses: rw_release_hold
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
local writes, reads = tonumber(ARGV[2]), tonumber(ARGV[3])
local reply, message = rw_release_hold(KEYS[1], KEYS[2], ARGV[1], writes, reads, ARGV[4])
local receivers = message and tonumber(redis.pcall(ARGV[6], ARGV[5], message)) or 0
return reply or receivers
