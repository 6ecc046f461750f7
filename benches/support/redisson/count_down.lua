-- Redisson's countDown of a latch: the keys, calls and replies of its wire format, in its order.
local left = redis.call('decr', KEYS[1])
if left <= 0 then redis.call('del', KEYS[1]) end
if left == 0 then redis.call(ARGV[2], KEYS[2], ARGV[1]) end
return nil
