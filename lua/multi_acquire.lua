--[[
  multi_acquire: take several locks of any kind, all of them or none.
  KEYS[i]  of each member: lock, token; of a fair one then queue, timeouts, alive; of a read or write
           side then waiting; each as in the script of its kind
  ARGV[1]  publish     PUBLISH or SPUBLISH
  ARGV[2]  queued      the member it was refused by last and may be queued at, from 1; 0 none
  ARGV[i]  of each member: kind (reentrant | fair | read | write), holder, lease_ms, fenced,
           heartbeat, waited_ms, channel; each as in the script of its kind
  Reply    {0, token | '', ...} all held now, with these tokens
           {member, remaining_ms} held elsewhere, or not its turn; it is queued there and nowhere else
]]
local publish, queued = ARGV[1], tonumber(ARGV[2])
local members, key, arg = {}, 0, 2
local function next_key()
  key = key + 1
  return KEYS[key]
end
local function next_arg()
  arg = arg + 1
  return ARGV[arg]
end
while arg < #ARGV do
  local m = { kind = next_arg(), holder = next_arg(), lease = next_arg(), fenced = next_arg() == '1' }
  m.heartbeat, m.waited, m.channel = tonumber(next_arg()), tonumber(next_arg()), next_arg()
  m.lock, m.token = next_key(), next_key()
  if m.kind == 'fair' then
    m.queue, m.timeouts, m.alive = next_key(), next_key(), next_key()
  elseif m.kind ~= 'reentrant' then
    m.waiting = next_key()
  end
  members[#members + 1] = m
end

local function look(m)
  local why
  if m.kind == 'fair' then
    why, m.remaining, m.is_head = fair_refusal(
      m.lock, m.queue, m.timeouts, m.alive, m.holder, '1', m.channel, publish)
  elseif m.kind == 'read' then
    why, m.remaining, m.anybody_waits = read_refusal(
      m.lock, m.waiting, m.holder, true, m.waited)
  elseif m.kind == 'write' then
    why, m.remaining, m.waits = write_refusal(m.lock, m.waiting, m.holder, true)
  else
    why, m.remaining = refusal(m.lock, m.holder, '1')
  end
  return why
end

local function leave(m)
  if m.kind == 'fair' then
    fair_leave(m.lock, m.queue, m.timeouts, m.alive, m.holder, m.channel, publish)
  elseif m.kind ~= 'reentrant' then
    rw_leave(m.waiting, m.holder, m.channel, publish)
  end
end

local function enqueue(m)
  if m.heartbeat == 0 or m.kind == 'reentrant' then return end
  if m.kind == 'fair' then
    fair_enqueue(m.queue, m.timeouts, m.alive, m.holder, m.heartbeat, m.remaining)
  else
    rw_wait(m.waiting, m.holder, m.heartbeat, m.kind)
  end
end

local function token(m)
  if not m.fenced then return '' end
  return next_token(m.token)
end

local function grant_to(m)
  if m.kind == 'read' then
    local refused = read_grant(m.lock, m.holder, 1, m.lease, m.remaining, true)
    if not refused and m.anybody_waits then read_begins(m.waiting, m.holder) end
    return refused
  elseif m.kind == 'write' then
    local refused = grant(m.lock, m.holder .. ':write', 1, m.lease, m.remaining, 'write')
    if not refused and m.waits then rw_wait_over(m.waiting, m.holder) end
    return refused
  end
  return grant(m.lock, m.holder, 1, m.lease, m.remaining)
end

-- An error says which member it is about.
local function named(i, caught)
  return redis.error_reply(error_text(caught) .. ' member ' .. i)
end

for i, m in ipairs(members) do
  local looked, why = pcall(look, m)
  if not looked then return named(i, why) end
  if why then
    -- Waiting in one queue while it is the first of another would keep others out for nothing.
    if queued ~= i and members[queued] then
      local left, refused = pcall(leave, members[queued])
      if not left then return named(queued, refused) end
    end
    local enqueued, refused = pcall(enqueue, m)
    if not enqueued then return named(i, refused) end
    return { i, why }
  end
end

local reply = { 0 }
for i, m in ipairs(members) do
  local looked, fencing = pcall(token, m)
  if not looked or type(fencing) ~= 'string' then return named(i, fencing) end
  reply[i + 1] = fencing
end
-- Before the first grant: a user without the right to it gets none.
for i, m in ipairs(members) do
  if m.is_head then fair_pop(m.queue, m.timeouts, m.alive, m.holder) end
end
for i, m in ipairs(members) do
  local refused = grant_to(m)
  if refused then return refused end
  if m.fenced then redis.call('SET', m.token, reply[i + 1]) end
end
return reply
