-- Redisson's tryAcquire of an expirable permit: the keys, calls and replies of its wire format, in its order.
local ended = redis.call('zrangebyscore', KEYS[2], 0, ARGV[3], 'limit', 0, ARGV[1])
if #ended > 0 then
  redis.call('zrem', KEYS[2], unpack(ended))
  local more = redis.call('incrby', KEYS[1], #ended)
  if more > 0 then redis.call(ARGV[5], KEYS[3], more) end
end
local free = redis.call('get', KEYS[1])
if free and tonumber(free) >= tonumber(ARGV[1]) then
  redis.call('decrby', KEYS[1], ARGV[1])
  for i = 6, #ARGV do redis.call('zadd', KEYS[2], ARGV[2], ARGV[i]) end
  local ttl = redis.call('pttl', KEYS[1])
  if ttl > 0 then redis.call('pexpire', KEYS[2], ttl) end
  return 'OK'
end
local first = redis.call('zrangebyscore', KEYS[2], 0, ARGV[4] - 1, 'withscores', 'limit', 0, 1)
if #first > 0 then return ':' .. first[2] end
return nil
