--[[
  fair_place: the place of a waiter in the queue. Dead waiters count too, and so do waiters for the other lock with
  this queue.
  KEYS[1]  queue   LIST  waiters, the next one first
  ARGV[1]  waiter
  ARGV[2]  places  how many places are searched; 0: all
  Reply    place, from 1 | nil not among them
]]
local before = redis.pcall('LPOS', KEYS[1], ARGV[1], 'MAXLEN', ARGV[2])
return type(before) == 'number' and before + 1 or nil
