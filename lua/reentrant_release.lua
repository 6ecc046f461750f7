-- uses: release_hold
--[[
  reentrant_release: lower a holder's hold count to a given number; 0 frees the lock.
  KEYS[1]  lock        HASH  holder -> hold count, one field while held
  ARGV[1]  holder
  ARGV[2]  hold_count  the count to leave
  ARGV[3]  lease_ms    lease to keep at least, if the count is not 0
  ARGV[4]  channel     where waiters listen
  ARGV[5]  publish     PUBLISH or SPUBLISH
  Reply    how many connections received that the lock is free | -1 not held by this holder
]]
return release_hold(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
