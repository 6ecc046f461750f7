--[[
  recall: tell the clients that hold a lock that somebody waits for it.
  KEYS[1]  lock     HASH  holder -> hold count, and what else a lock of its kind has
  ARGV[1]  channel  of each client, before its uuid
  ARGV[2]  publish  PUBLISH: a client has one channel for locks of all slots
  Reply    how many connections received it here | -1 the user may not publish it
]]
-- With more readers, the others are recalled when a later call draws them.
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
