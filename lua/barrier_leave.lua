-- uses: end_round
--[[
  barrier_leave: stop waiting at a barrier.
  KEYS[1]  parties   STRING  how many parties a round has; exists while a party waits
  KEYS[2]  arrivals  ZSET    party -> server ms at which its lease ends
  KEYS[3]  over      STRING  the outcome of this party's round
  ARGV[1]  party
  ARGV[2]  breaks    1: the round is broken for all; 0: the others wait on
  ARGV[3]  prefix    the third key without the party
  ARGV[4]  kept_ms   for how long outcomes are kept
  ARGV[5]  channel   where parties listen
  ARGV[6]  publish   PUBLISH or SPUBLISH
  Reply    `left:` and this party | the earlier outcome of the round, as of barrier_arrive
]]
local over = redis.call('GET', KEYS[3])
if over then return over end
local party, arrivals = ARGV[1], KEYS[2]
local left = 'left:' .. party
if ARGV[2] == '1' and redis.call('ZSCORE', arrivals, party) then
  -- A full server accepts this write, which changes nothing, and all later ones after it.
  redis.pcall('ZREM', arrivals, '')
  end_round({
    parties = KEYS[1], arrivals = arrivals, over = ARGV[3], kept_ms = ARGV[4], channel = ARGV[5], publish = ARGV[6]
  }, nil, left)
  return left
end
if redis.call('ZREM', arrivals, party) == 1 and redis.call('ZCARD', arrivals) == 0 then
  redis.call('DEL', KEYS[1])
end
-- An arrival that comes late does not count.
redis.call('SET', KEYS[3], left, 'PX', ARGV[4])
return left
