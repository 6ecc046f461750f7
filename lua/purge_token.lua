-- uses: counter_stays
--[[
  purge_token: remove the fencing counter of a lock that has not been used for long, for operators.
  KEYS[1]  token      STRING  last fencing token
  KEYS[i]  in use     the locks with this counter, and the keys that note their waiters
  ARGV[1]  unused_us  the least time since the last token, by the server's clock
  ARGV[2]  numsub     NUMSUB or SHARDNUMSUB
  ARGV[i]  channel    where waiters for these locks listen
  Reply    1 it is removed | 0 there is none | -1 a token was given since | -2 a lock is held or waited for
           -3 it stays: Redisson counts too, or it is ahead of the server's clock
]]
local last = redis.call('GET', KEYS[1])
if not last then return 0 end
last = tonumber(last)
if not last then return redis.error_reply('WRONGTYPE the fencing counter is not a number') end
local now = redis.call('TIME')
now = tonumber(now[1]) * 1000000 + tonumber(now[2])
-- Only a counter that is a time shows when it was last used.
if last <= 0 or counter_stays(last) or last > now then return -3 end
if now - last < tonumber(ARGV[1]) then return -1 end
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then return -2 end
end
for i = 3, #ARGV do
  if redis.call('PUBSUB', ARGV[2], ARGV[i])[2] > 0 then return -2 end
end
redis.call('DEL', KEYS[1])
return 1
