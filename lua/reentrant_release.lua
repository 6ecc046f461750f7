-- uses: release_hold
--[[
  reentrant_release: free the lock, if this holder has it.
  KEYS[1]  lock        HASH  holder -> hold count, one field while held
  ARGV[1]  holder
  ARGV[2]  channel  where waiters listen
  ARGV[3]  publish  PUBLISH or SPUBLISH
  Reply    how many connections received the message that the lock is free | -1 not held by this holder
]]
return release_hold(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
