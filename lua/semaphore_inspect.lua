-- uses: count_at, server_ms
--[[
  semaphore_inspect: how many permits are free, and which are taken. Changes nothing.
  KEYS[1]  free      STRING  permits that are free
  KEYS[2]  timeouts  ZSET    permit -> server ms until which it is taken
  Reply    {free, id, remaining_ms, ...}  permits whose leases have ended count as free
           -1 it was never declared
]]
local free = count_at(KEYS[1])
if not free then return -1 end
if type(free) == 'table' then return free end
local now = server_ms()
local reply = {free + redis.call('ZCOUNT', KEYS[2], 0, now)}
local taken = redis.call('ZRANGE', KEYS[2], 0, 9999, 'WITHSCORES')
for i = 1, #taken, 2 do
  local remaining = taken[i + 1] - now
  if remaining > 0 then
    reply[#reply + 1] = taken[i]
    reply[#reply + 1] = math.floor(remaining)
  end
end
return reply
