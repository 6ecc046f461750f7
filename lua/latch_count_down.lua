-- uses: count_at, open_latch
--[[
  latch_count_down: count a latch down once for an id, and open it at zero.
  KEYS[1]  latch      STRING  how many count-downs are left; absent while it is open
  KEYS[2]  done       STRING  the call that counted for this id
  KEYS[3]  opened     STRING  the call that opened it last
  ARGV[1]  call       an id of this call
  ARGV[2]  done_ms    for how long the id does not count again
  ARGV[3]  opened_ms  for how long waiters can see that it was open
  ARGV[4]  channel    where waiters listen
  ARGV[5]  publish    PUBLISH or SPUBLISH
  Reply    counted; the call that opened it last before this, empty if none did lately
           1 an earlier run of this call has counted | 0 the id had counted before, or the latch is open
]]
local latch, done, call = KEYS[1], KEYS[2], ARGV[1]
local count = count_at(latch)
if type(count) == 'table' then return count end
-- Redisson leaves a count of 0 or less, which is an open latch.
if not count or count <= 0 or not redis.call('SET', done, call, 'NX', 'PX', ARGV[2]) then
  return redis.call('GET', done) == call and 1 or 0
end
local opened = redis.pcall('GET', KEYS[3])
local left = redis.pcall('INCRBY', latch, '-1')
-- The user lacks the right to INCRBY: the id has not counted.
if type(left) == 'table' then
  redis.call('DEL', done)
  return left
end
if left <= 0 then
  open_latch(latch, KEYS[3], call, ARGV[3], ARGV[4], ARGV[5])
end
return type(opened) == 'string' and opened or ''
