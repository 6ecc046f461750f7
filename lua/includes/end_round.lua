-- Ends a round of a barrier: notes the outcome for each party that waits, and wakes all of them. The leader is the
-- party that came last. A broken round has no leader.
local function end_round(round, leader, became)
  local parties = redis.call('ZRANGE', round.arrivals, 0, -1)
  -- A user without the right to these keys fails here, and ends no round. No party has this name.
  redis.call('DEL', round.over)
  for _, party in ipairs(parties) do
    local of_party = party == leader and 'leads' or became
    redis.call('SET', round.over .. party, of_party, 'PX', round.kept_ms)
  end
  redis.call('DEL', round.arrivals, round.parties)
  redis.pcall(round.publish, round.channel, '0')
end
