-- uses: count_at, server_ms, semaphore_reclaim
--[[
  semaphore_resize: set the total number of permits of a semaphore, including taken ones.
  KEYS[1]  free      STRING  permits that are free; below 0 until enough are returned
  KEYS[2]  timeouts  ZSET    permit -> server ms until which it is taken
  ARGV[1]  permits   in total
  ARGV[2]  channel   where waiters listen
  ARGV[3]  publish   PUBLISH or SPUBLISH
  Reply    how many are free now
]]
local before = count_at(KEYS[1])
if type(before) == 'table' then return before end
before = (before or 0) + semaphore_reclaim(KEYS[1], KEYS[2], server_ms())
local free = ARGV[1] - redis.call('ZCARD', KEYS[2])
redis.call('INCRBY', KEYS[1], string.format('%.0f', free - before))
if free > 0 then redis.pcall(ARGV[3], ARGV[2], string.format('%.0f', free)) end
return free
