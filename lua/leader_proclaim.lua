--[[
  leader_proclaim: write the value that the leader of an election proclaims, if it still leads.
  KEYS[1]  lock     HASH  holder -> hold count, one field while held
  KEYS[2]  leader   HASH  id, token, value and version of the last proclamation
  ARGV[1]  holder
  ARGV[2]  token    the fencing token of the leader; of two terms of one holder, the later has the larger token
  ARGV[3]  version  of the value, counted by the leader
  ARGV[4]  value
  ARGV[5]  kept_ms  for how long the value is kept unless it is written again
  ARGV[6]  channel  where observers listen
  ARGV[7]  publish  PUBLISH or SPUBLISH
  Reply    1 this value or a later one is stored | 0 it leads no longer
]]
local leader, holder, token, version = KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if redis.call('HEXISTS', KEYS[1], holder) == 0 then return 0 end
local known = redis.call('HMGET', leader, 'id', 'token', 'version')
if known[1] == holder then
  local last = tonumber(known[2]) or 0
  if last > token then return 0 end
  if last == token and (tonumber(known[3]) or -1) >= version then
    redis.call('PEXPIRE', leader, ARGV[5])
    return 1
  end
end
redis.call('HSET', leader, 'id', holder, 'token', ARGV[2], 'value', ARGV[4], 'version', ARGV[3])
redis.call('PEXPIRE', leader, ARGV[5])
redis.pcall(ARGV[7], ARGV[6], ARGV[2])
return 1
