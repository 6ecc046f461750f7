--[[
  multi_release: set the counts of several holds of any kind, as the release of each kind does.
  KEYS[i]  of each member: lock; of a fair one then queue, timeouts, alive; of one on a read-write
           lock then waiting
  ARGV[1]  publish  PUBLISH or SPUBLISH
  ARGV[i]  of each member: kind (reentrant | fair | rw), holder, hold_count (of writes, if rw),
           read_count, lease_ms, channel
  Reply    {told | -1, ...}  for each member, as the release of its kind; -1 also for a key that
           holds something else
]]
local publish, reply, failed, key, arg = ARGV[1], {}, nil, 0, 1
local function next_key()
  key = key + 1
  return KEYS[key]
end
local function next_arg()
  arg = arg + 1
  return ARGV[arg]
end
-- What is the matter with one keeps no other from being released. A key that holds something else
-- is no hold of ours.
local function settle(release, member, ...)
  local done, told = pcall(release, ...)
  if not done then
    local text = error_text(told)
    if not string.find(text, '^WRONGTYPE') then failed = failed or text .. ' member ' .. member end
    told = -1
  end
  reply[member] = told
end
while arg < #ARGV do
  local kind, holder, hold_count, reads = next_arg(), next_arg(), next_arg(), next_arg()
  local lease, channel, lock, member = next_arg(), next_arg(), next_key(), #reply + 1
  if kind == 'fair' then
    local queue, timeouts, alive = next_key(), next_key(), next_key()
    settle(fair_lower, member,
      lock, queue, timeouts, alive, holder, hold_count, lease, channel, publish)
  elseif kind == 'rw' then
    settle(rw_settle, member,
      lock, next_key(), holder, tonumber(hold_count), tonumber(reads), lease, channel, publish)
  else
    settle(lower, member, lock, holder, hold_count, lease, channel, publish)
  end
end
if failed then return redis.error_reply(failed) end
return reply
