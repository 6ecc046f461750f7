-- uses: count_at, server_ms
--[[
  purge_semaphore: remove a semaphore of either kind whose permits are all free, for operators.
  KEYS[1]  free      STRING  permits that are free
  KEYS[2]  timeouts  ZSET    permit -> server ms until which it is taken
  KEYS[i]  in use    from 3 on, what is there while a permit is taken or waited for, or if it is no semaphore
  ARGV[1]  permits   how many it has in all
  ARGV[2]  numsub    NUMSUB or SHARDNUMSUB
  ARGV[i]  channel   from 3 on, where those listen that wait
  Reply    1 it is removed | 0 there is none | -1 it has another number of permits
           -2 a permit is taken or waited for, or it is no semaphore
]]
local free = count_at(KEYS[1])
if not free then return 0 end
if type(free) == 'table' then return free end
for i = 3, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then return -2 end
end
-- Those whose leases have ended stay there until the next one asks.
local now, ended_max = server_ms(), 1000
local permits = redis.call('ZRANGE', KEYS[2], 0, ended_max, 'WITHSCORES')
if #permits > 2 * ended_max then return -2 end
for i = 1, #permits, 2 do
  local id = permits[i]
  local is_redissons = #id == 16 and not string.find(id, '^[ -~]*$') or #id == 32 and string.find(id, '^%x*$')
  local is_ours = string.find(id, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d') or string.find(id, '^ended:%d+$')
  if tonumber(permits[i + 1]) > now or not (is_redissons or is_ours) then return -2 end
end
if free + #permits / 2 ~= tonumber(ARGV[1]) then return -1 end
for i = 3, #ARGV do
  if redis.call('PUBSUB', ARGV[2], ARGV[i])[2] > 0 then return -2 end
end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
