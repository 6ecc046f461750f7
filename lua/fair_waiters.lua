-- uses: read_place
--[[
  fair_waiters: the waiters for the lock, the next one first.
  KEYS[1]  lock   HASH  holder -> hold count; only its name is read
  KEYS[2]  queue  LIST  waiters, the next one first
  KEYS[3]  alive  ZSET  waiter of ours -> until when its place is kept; see mark_place
  Reply    {waiter, ...}
]]
local others, waiters = {}, {}
local alive = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
for i = 1, #alive, 2 do
  others[alive[i]] = not read_place(KEYS[1], tonumber(alive[i + 1]))
end
for _, waiter in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
  if not others[waiter] then waiters[#waiters + 1] = waiter end
end
return waiters
