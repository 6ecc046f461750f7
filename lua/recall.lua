--[[
  recall: notify the clients that hold a lock that a waiter wants it.
  KEYS[1]  lock     HASH  holder -> hold count, and other fields of its kind
  ARGV[1]  channel  of each client, before its uuid
  ARGV[2]  publish  PUBLISH: a client has one channel for locks of all slots
  Reply    how many connections to this server received it | -1 the user may not publish
]]
-- A random choice. Further holders are recalled when a later call chooses them.
local holders_max = 64
local received = 0
for _, field in ipairs(redis.call('HRANDFIELD', KEYS[1], holders_max)) do
  -- A writer has `:write` behind the number. Redisson's clients do not listen.
  local client, number = string.match(field, '^(%x+%-%x+%-%x+%-%x+%-%x+):(%d+)')
  if client then
    local receivers = tonumber(redis.pcall(ARGV[2], ARGV[1] .. client, number))
    if not receivers then return -1 end
    received = received + receivers
  end
end
return received
