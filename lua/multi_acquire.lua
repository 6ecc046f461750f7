--[[
  multi_acquire: take several locks of any kind, all of them or none.
  KEYS[i]  of each member: lock; unless it is plain, token; of a fair one then queue, timeouts, alive;
           of a read or write side then waiting; each as in the script of its kind
  ARGV[1]  publish     PUBLISH or SPUBLISH
  ARGV[2]  queued      the member that refused last, where the caller may be queued, from 1; 0: none
  ARGV[3]  retention   ms for which the counters of tokens are kept; 0: for ever
  ARGV[4]  lease_ms    of each plain member
  ARGV[i]  of each member: if it is plain, holder; else kind (reentrant | fair | read | write), holder,
           lease_ms, tokens, heartbeat, waited_ms, channel; each as in the script of its kind; a plain
           one is a reentrant one without a token
  Reply    0 all held now | {0, token | '', ...} all held now, with these tokens
           {member, remaining_ms} held elsewhere, or not its turn; it is queued there and nowhere else
]]
-- 1. Read the members from KEYS and ARGV.
-- 2. Look at each in order, and write nothing. At the first that refuses: leave the queue of the member that
--    refused last, if that was another, and queue here instead. So a caller waits in one queue at most. As the first
--    of one queue that waits in another, it would keep others out for nothing.
-- 3. If all can be granted, read the next token of each that wants one. After this, nothing can be refused
--    without a trace.
-- 4. Leave the queues whose head the caller is. Before the first grant, so that a user who lacks the right
--    gets no lock.
-- 5. Grant all of them, and store their tokens.
-- An error names its member, if that is known. After the first grant no error says that nothing was done.
-- If all members are plain and free, they are granted at once, without these steps.
local publish, queued, count = ARGV[1], tonumber(ARGV[2]), #KEYS
-- A member of another kind has more arguments than keys.
if #ARGV == 4 + count and redis.pcall('EXISTS', unpack(KEYS)) == 0 then
  local lease = ARGV[4]
  for i, lock in ipairs(KEYS) do
    local holder = ARGV[4 + i]
    -- As `grant` does.
    redis.call('HSET', lock, holder, '1')
    local leased = redis.pcall('PEXPIRE', lock, lease)
    if leased ~= 1 then
      redis.call('HDEL', lock, holder)
      return leased
    end
  end
  return 0
end
-- uses: error_text, refusal, grant, next_token, keep_token
-- uses: fair_refusal, fair_enqueue, fair_dequeue, fair_leave
-- uses: read_refusal, write_refusal, rw_wait, rw_wait_over, rw_leave, read_begins, read_grant
local kinds = { reentrant = true, fair = true, read = true, write = true }
local members, key, arg = {}, 1, 5
while ARGV[arg] do
  local kind, lock = ARGV[arg], KEYS[key]
  local m
  -- Read all fields at once: adding a field later may reallocate the table.
  if not kinds[kind] then
    m = { kind = 'plain', holder = kind, lease = ARGV[4], lock = lock, remaining = -2 }
    arg, key = arg + 1, key + 1
  else
    m = {
      kind = kind, holder = ARGV[arg + 1], lease = ARGV[arg + 2], lock = lock, remaining = -2,
      fenced = ARGV[arg + 3] == '1', counter = KEYS[key + 1], heartbeat = tonumber(ARGV[arg + 4]),
      waited = tonumber(ARGV[arg + 5]), channel = ARGV[arg + 6],
    }
    arg, key = arg + 7, key + 2
  end
  if kind == 'fair' then
    -- Without `token`: a caller that leaves this queue hands over no fenced lock, but wakes the next waiter.
    m.queue, m.timeouts, m.alive, m.publish = KEYS[key], KEYS[key + 1], KEYS[key + 2], publish
    key = key + 3
  elseif kind == 'read' or kind == 'write' then
    m.waiting = KEYS[key]
    key = key + 1
  end
  members[#members + 1] = m
end

local function member_refusal(m)
  local why
  if m.kind == 'fair' then
    local to_wake
    why, m.remaining, m.is_head, to_wake = fair_refusal(
      m.lock, m.queue, m.timeouts, m.alive, m.holder)
    if to_wake then redis.pcall(publish, m.channel .. ':' .. to_wake, '0') end
  elseif m.kind == 'read' then
    why, m.remaining, m.anybody_waits, m.seen = read_refusal(
      m.lock, m.waiting, m.holder, m.waited)
  elseif m.kind == 'write' then
    why, m.remaining, m.waits = write_refusal(m.lock, m.waiting, m.holder)
  else
    why, m.remaining = refusal(m.lock, m.holder)
  end
  return why
end

local function leave_queue(m)
  if m.kind == 'fair' then
    fair_leave(m, m.holder)
  elseif m.waiting then
    rw_leave(m.waiting, m.holder, m.channel, publish)
  end
end

local function enter_queue(m)
  if not m.heartbeat or m.heartbeat == 0 then return end
  if m.kind == 'fair' then
    -- The caller is handed no lock alone, because one lock is no use without the others.
    fair_enqueue(m, m.holder, m.heartbeat, 'wake', m.remaining)
  elseif m.waiting then
    rw_wait(m.waiting, m.holder, m.heartbeat, m.kind)
  end
end

local function grant_member(m)
  if m.kind == 'read' then
    local refused = read_grant(m.lock, m.holder, m.lease, m.remaining, m.seen)
    if not refused and m.anybody_waits then read_begins(m.waiting, m.holder) end
    return refused
  elseif m.kind == 'write' then
    local refused = grant(m.lock, m.holder .. ':write', m.lease, m.remaining, 'write')
    if not refused and m.waits then rw_wait_over(m.waiting, m.holder) end
    return refused
  end
  return grant(m.lock, m.holder, m.lease, m.remaining)
end

local function error_of(i, caught)
  return redis.error_reply(error_text(caught) .. ' member ' .. i)
end

for i, m in ipairs(members) do
  local looked, why = true, nil
  -- A free plain member needs no further look.
  if m.kind ~= 'plain' or redis.call('PTTL', m.lock) ~= -2 then
    looked, why = pcall(member_refusal, m)
  end
  if not looked then return error_of(i, why) end
  if why then
    if queued ~= i and members[queued] then
      local left, refused = pcall(leave_queue, members[queued])
      if not left then return error_of(queued, refused) end
    end
    local entered, refused = pcall(enter_queue, m)
    if not entered then return error_of(i, refused) end
    return { i, why }
  end
end

local reply = { 0 }
for i, m in ipairs(members) do
  reply[i + 1] = ''
  if m.fenced then
    local counted, token, stays = pcall(next_token, m.counter)
    if not counted or type(token) ~= 'string' then return error_of(i, token) end
    reply[i + 1], m.stays = token, stays
  end
end
for _, m in ipairs(members) do
  if m.is_head then fair_dequeue(m.queue, m.timeouts, m.alive, m.holder) end
end
for i, m in ipairs(members) do
  local refused = grant_member(m)
  if refused then return refused end
  if m.fenced then keep_token(m.counter, reply[i + 1], 0, ARGV[3], m.stays) end
end
return reply
