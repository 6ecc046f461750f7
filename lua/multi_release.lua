--[[
  multi_release: end several holds of any kind, as the release of each kind does.
  KEYS[i]  of each member: lock; of a fair one then queue, timeouts, alive; of one on a read-write
           lock then waiting
  ARGV[1]  publish  PUBLISH or SPUBLISH
  ARGV[i]  of each member: kind (plain | fair | rw), holder, channel; a plain one is a reentrant one
  Reply    {receivers | -1, ...}  for each member, as the release of its kind; -1 also for a key that
           holds something else
]]
local publish, reply, arg, member = ARGV[1], {}, 2, 0
-- The usual case, plain members that are held, before the pieces that it does not need. As `release_hold` does.
while ARGV[arg] == 'plain' and redis.pcall('HDEL', KEYS[member + 1], ARGV[arg + 1]) == 1 do
  member = member + 1
  reply[member] = tonumber(redis.pcall(publish, ARGV[arg + 2], '0')) or 0
  arg = arg + 3
end
if not ARGV[arg] then return reply end
-- uses: error_text, release_hold, fair_release_hold, rw_release_hold, tell
local failed, key = nil, member + 1
-- The failure of one member does not stop the release of the others. A key that holds something else is no hold
-- of ours.
local function release_member(member, release, ...)
  local done, receivers = pcall(release, ...)
  if not done then
    local text = error_text(receivers)
    if not string.find(text, '^WRONGTYPE') then failed = failed or text .. ' member ' .. member end
    receivers = -1
  end
  reply[member] = receivers
end
local function release_rw(channel, ...)
  local reply_of_it, message = rw_release_hold(...)
  local received = message and tell(publish, channel, message) or 0
  return reply_of_it or received
end
while ARGV[arg] do
  member = member + 1
  local kind, holder, channel, lock = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2], KEYS[key]
  arg, key = arg + 3, key + 1
  if kind == 'plain' then
    -- As `release_hold` does, without the cost of `pcall`.
    if redis.pcall('HDEL', lock, holder) == 1 then
      reply[member] = tonumber(redis.pcall(publish, channel, '0')) or 0
    else
      release_member(member, release_hold, lock, holder, channel, publish)
    end
  elseif kind == 'fair' then
    local q = {
      lock = lock, queue = KEYS[key], timeouts = KEYS[key + 1], alive = KEYS[key + 2],
      channel = channel, publish = publish,
    }
    release_member(member, fair_release_hold, q, holder)
    key = key + 3
  else
    release_member(member, release_rw, channel, lock, KEYS[key], holder)
    key = key + 1
  end
end
if failed then return redis.error_reply(failed) end
return reply
