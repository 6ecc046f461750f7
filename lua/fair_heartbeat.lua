-- uses: server_ms, mark_place, read_place, fair_handover
--[[
  fair_heartbeat: keep the places of many waiters of one client, and free a queue whose head is dead.
  KEYS[1]  lock        HASH    holder -> hold count, one field while held
  KEYS[2]  queue       LIST    waiters, the next one first
  KEYS[3]  timeouts    ZSET    waiter -> server ms until which Redisson keeps it
  KEYS[4]  alive       ZSET    waiter of ours -> until when its place is kept; see mark_place
  KEYS[5]  token       STRING  last fencing token of the lock; only if its users have the right to it
  ARGV[1]  heartbeat  ms for which each place is kept from now
  ARGV[2]  channel    where waiters listen, before :waiter
  ARGV[3]  publish    PUBLISH or SPUBLISH
  ARGV[4]  retention  ms for which the counter of the tokens is kept; 0: for ever
  ARGV[i]  waiter     from 5
  Reply    for each waiter: until when its place is kept now, in server ms
           -1 its place is unchanged, and it has to ask by itself
           0 it has no place
]]
local q = {
  lock = KEYS[1], queue = KEYS[2], timeouts = KEYS[3], alive = KEYS[4],
  channel = ARGV[2], publish = ARGV[3], token = KEYS[5], retention = ARGV[4],
}
if redis.call('PTTL', q.lock) == -2 then fair_handover(q) end
local now, head, length = server_ms(), redis.call('LINDEX', q.queue, 0), redis.call('LLEN', q.queue)
-- If there are more scores than places, a place was removed: perhaps one of these.
local is_certain = redis.call('ZCARD', q.timeouts) <= length
local kept_until = now + tonumber(ARGV[1])
local waiters = {}
for i = 5, #ARGV do waiters[#waiters + 1] = ARGV[i] end
local scores, places = {}, {}
if #waiters > 0 then
  scores = redis.call('ZMSCORE', q.alive, unpack(waiters))
  -- Redisson removes the score with the place.
  places = redis.call('ZMSCORE', q.timeouts, unpack(waiters))
end
local reply, kept, marks = {}, {}, {}
for i, waiter in ipairs(waiters) do
  local until_ms, on_turn
  if scores[i] then until_ms, on_turn = read_place(q.lock, tonumber(scores[i])) end
  if not until_ms then
    reply[i] = 0
  elseif is_certain and places[i] and waiter ~= head and now < until_ms then
    marks[on_turn] = marks[on_turn] or mark_place(q.lock, kept_until, on_turn)
    kept[#kept + 1] = marks[on_turn]
    kept[#kept + 1] = waiter
    reply[i] = kept_until
  else
    reply[i] = -1
  end
end
if #kept > 0 then
  -- A full server accepts this write, which changes nothing, and all later ones after it.
  redis.pcall('ZREM', q.alive, '')
  redis.call('ZADD', q.alive, 'XX', unpack(kept))
end
return reply
