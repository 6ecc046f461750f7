-- uses: count_at
--[[
  plain_acquire: take permits of a semaphore, all or none, for a holder.
  KEYS[1]  permits   STRING  how many are available
  KEYS[2]  holds     HASH    holder -> how many it took; only ours
  ARGV[1]  holder    new for each call
  ARGV[2]  count     how many it takes
  ARGV[3]  declared  the number of permits with which a missing semaphore is made; empty: it is not made
  ARGV[4]  holds_ms  for how long the server knows who took permits
  ARGV[5]  channel   where waiters listen
  ARGV[6]  publish   PUBLISH or SPUBLISH
  Reply    1 taken now | 0 fewer are available
]]
local permits, holds, count = KEYS[1], KEYS[2], tonumber(ARGV[2])
if redis.call('HEXISTS', holds, ARGV[1]) == 1 then return 1 end
local available = count_at(permits)
if type(available) == 'table' then return available end
if not available and ARGV[3] ~= '' then
  -- These permits belong to a semaphore that is gone, and must not be returned to the new one.
  redis.call('DEL', holds)
  available = tonumber(ARGV[3])
  redis.call('SET', permits, ARGV[3])
  redis.pcall(ARGV[6], ARGV[5], ARGV[3])
end
if not available or available < count then return 0 end
redis.call('INCRBY', permits, -count)
local noted = redis.pcall('HSET', holds, ARGV[1], ARGV[2])
if type(noted) == 'table' then
  redis.call('INCRBY', permits, count)
  return noted
end
redis.call('PEXPIRE', holds, ARGV[4])
return 1
