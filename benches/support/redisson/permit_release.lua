-- Redisson's tryRelease of an expirable permit: the keys, calls and replies of its wire format, in its order.
local until_ms = redis.call('zscore', KEYS[3], ARGV[1])
if not until_ms then return 0 end
if redis.call('zrem', KEYS[3], ARGV[1]) ~= 1 then return 0 end
local free = redis.call('incrby', KEYS[1], ARGV[2])
redis.call(ARGV[4], KEYS[2], free)
if tonumber(until_ms) <= tonumber(ARGV[3]) then return 0 end
return 1
