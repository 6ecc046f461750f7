-- uses: count_at, server_ms, end_round
--[[
  barrier_arrive: join a round of a barrier, or renew the lease there; end the round if all have come or one has died.
  KEYS[1]  parties   STRING  how many parties a round has; exists while a party waits
  KEYS[2]  arrivals  ZSET    party -> server ms at which its lease ends
  KEYS[3]  over      STRING  the outcome of this party's round
  ARGV[1]  party     new for each call
  ARGV[2]  parties
  ARGV[3]  lease_ms
  ARGV[4]  prefix    the third key without the party; the keys of other parties are made from it
  ARGV[5]  kept_ms   for how long outcomes are kept
  ARGV[6]  channel   where parties listen
  ARGV[7]  publish   PUBLISH or SPUBLISH
  ARGV[8]  again     1: an earlier reply said that the party waits
  ARGV[i]  gone      from 9 on, parties of this client that leave, if any; they do not count in this round
  Reply    how many wait, with this one | minus the number of parties that the waiting ones declared
           `leads` all came, this one last | `passed` all came | `died:party` | `left:party` broken by that party
]]
local over = redis.call('GET', KEYS[3])
if over then return over end
local arrivals, party, wanted = KEYS[2], ARGV[1], tonumber(ARGV[2])
local parties = count_at(KEYS[1])
if type(parties) == 'table' then return parties end
local round = {
  parties = KEYS[1], arrivals = arrivals, over = ARGV[4], kept_ms = ARGV[5], channel = ARGV[6], publish = ARGV[7]
}
local now, waits = server_ms(), redis.call('ZSCORE', arrivals, party)
-- The server no longer knows the outcome of this party's round, and the party must not count in a later one.
if ARGV[8] == '1' and not waits then return 'died:' .. party end
-- A full server accepts this write, which changes nothing, and after it all later ones. So a waiting party stays.
if waits then redis.pcall('ZREM', arrivals, '') end
-- As barrier_leave, whose calls for these parties may arrive after this one.
local gone = 0
for i = 9, #ARGV do
  gone = gone + redis.call('ZREM', arrivals, ARGV[i])
  redis.call('SET', round.over .. ARGV[i], 'left:' .. ARGV[i], 'PX', ARGV[5])
end
if gone > 0 and redis.call('ZCARD', arrivals) == 0 then
  redis.call('DEL', KEYS[1])
  parties = nil
end
-- A party that stood still for longer than its lease, but asks before the others, is alive.
local first = redis.call('ZRANGE', arrivals, 0, 1, 'WITHSCORES')
for at = 1, #first, 2 do
  local dead = first[at]
  if dead ~= party and tonumber(first[at + 1]) <= now then
    end_round(round, nil, 'died:' .. dead)
    if waits then return 'died:' .. dead end
    parties = nil
    break
  end
end
if parties and parties ~= wanted then return -parties end
redis.call('ZADD', arrivals, now + ARGV[3], party)
local count = redis.call('ZCARD', arrivals)
if count >= wanted then
  end_round(round, party, 'passed')
  return 'leads'
end
-- Outlasts the lease of each party, because all parties ask at least once a second.
local kept_ms = ARGV[3] + ARGV[5]
redis.call('PEXPIRE', arrivals, kept_ms)
redis.call('SET', KEYS[1], ARGV[2], 'PX', kept_ms)
return count
