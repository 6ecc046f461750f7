--[[
  multi_acquire: take several locks of any kind, all of them or none.
  KEYS[i]  of each member: lock, token; of a fair one then queue, timeouts, alive; of a read or write
           side then writers; each as in the script of its kind
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
    m.writers = next_key()
  end
  members[#members + 1] = m
end

local function refusal_of(m)
  if m.kind == 'fair' then
    return fair_refusal(
      m.lock, m.queue, m.timeouts, m.alive, m.holder, '1', m.channel, publish)
  elseif m.kind == 'read' then
    return read_refusal(m.lock, m.writers, m.holder, true, m.waited)
  elseif m.kind == 'write' then
    return write_refusal(m.lock, m.holder, true)
  end
  return refusal(m.lock, m.holder, '1')
end

for i, m in ipairs(members) do
  local looked, why, remaining, head = pcall(refusal_of, m)
  if not looked then
    -- A key of another type: says whose.
    local text = type(why) == 'table' and why.err or tostring(why)
    return redis.error_reply((string.match(text, 'WRONGTYPE.*') or text) .. ' member ' .. i)
  end
  m.remaining, m.head = remaining, head
  if why then
    -- Waiting in one queue while it is the first of another would keep others out for nothing.
    local left = queued ~= i and members[queued]
    if left and left.kind == 'fair' then
      fair_leave(left.lock, left.queue, left.timeouts, left.alive, left.holder, left.channel, publish)
    elseif left and left.kind == 'write' then
      writer_leave(left.writers, left.holder, left.channel, publish)
    end
    if m.heartbeat > 0 and m.kind == 'fair' then
      fair_enqueue(m.queue, m.timeouts, m.alive, m.holder, m.heartbeat, m.remaining)
    elseif m.heartbeat > 0 and m.kind == 'write' then
      writer_enqueue(m.writers, m.holder, m.heartbeat)
    end
    return { i, why }
  end
end

local reply = { 0 }
for i, m in ipairs(members) do
  reply[i + 1] = ''
  if m.fenced then
    reply[i + 1] = next_token(m.token)
    if type(reply[i + 1]) ~= 'string' then return reply[i + 1] end
  end
end
for i, m in ipairs(members) do
  local refused
  if m.kind == 'read' then
    refused = read_grant(m.lock, m.holder, 1, m.lease, m.remaining)
  elseif m.kind == 'write' then
    refused = grant(m.lock, m.holder .. ':write', 1, m.lease, m.remaining, 'write')
    redis.call('ZREM', m.writers, m.holder)
  else
    refused = grant(m.lock, m.holder, 1, m.lease, m.remaining)
    if m.head then fair_served(m.queue, m.timeouts, m.alive, m.holder) end
  end
  if refused then return refused end
  if m.fenced then redis.call('SET', m.token, reply[i + 1]) end
end
return reply
