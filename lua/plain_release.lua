-- uses: count_at
--[[
  plain_release: return the permits that a holder took from a semaphore.
  KEYS[1]  permits   STRING  how many are available
  KEYS[2]  holds     HASH    holder -> how many it took; only ours
  ARGV[1]  holder
  ARGV[2]  holds_ms  for how long the server knows who took permits
  ARGV[3]  channel   where waiters listen
  ARGV[4]  publish   PUBLISH or SPUBLISH
  Reply    1 returned now | 0 the holder has none
]]
local permits, holds = KEYS[1], KEYS[2]
local count = redis.call('HGET', holds, ARGV[1])
if not count then return 0 end
local available = count_at(permits)
if type(available) == 'table' then return available end
redis.call('HDEL', holds, ARGV[1])
-- A semaphore that was deleted is not made again.
if available then
  available = redis.pcall('INCRBY', permits, count)
  if type(available) == 'table' then
    -- The user lacks the right to INCRBY: the holder keeps its permits.
    redis.call('HSET', holds, ARGV[1], count)
    redis.call('PEXPIRE', holds, ARGV[2])
    return available
  end
  -- Redisson's listeners fail on a negative number.
  if available > 0 then redis.pcall(ARGV[4], ARGV[3], tostring(available)) end
end
-- Last, so that a user without the right to PEXPIRE still returns the permits.
redis.call('PEXPIRE', holds, ARGV[2])
return 1
