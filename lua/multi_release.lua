--[[
  multi_release: set the counts of several holds of any kind, as the release of each kind does.
  KEYS[i]  of each member: lock; of a fair one then queue, timeouts, alive; of one on a read-write
           lock then writers
  ARGV[1]  publish  PUBLISH or SPUBLISH
  ARGV[i]  of each member: kind (reentrant | fair | rw), holder, hold_count (of writes, if rw),
           read_count, lease_ms, channel
  Reply    {told | -1, ...}  for each member, as the release of its kind
]]
local publish, reply, key, arg = ARGV[1], {}, 0, 1
local function next_key()
  key = key + 1
  return KEYS[key]
end
local function next_arg()
  arg = arg + 1
  return ARGV[arg]
end
while arg < #ARGV do
  local kind, holder, hold_count, reads = next_arg(), next_arg(), next_arg(), next_arg()
  local lease, channel, lock = next_arg(), next_arg(), next_key()
  if kind == 'fair' then
    local queue, timeouts, alive = next_key(), next_key(), next_key()
    reply[#reply + 1] = fair_lower(
      lock, queue, timeouts, alive, holder, hold_count, lease, channel, publish)
  elseif kind == 'rw' then
    reply[#reply + 1] = rw_settle(
      lock, next_key(), holder, tonumber(hold_count), tonumber(reads), lease, channel, publish)
  else
    reply[#reply + 1] = lower(lock, holder, hold_count, lease, channel, publish)
  end
end
return reply
