-- Redisson's watchdog: one batch of locks, one holder each.
-- KEYS locks; ARGV lease_ms, holders. Reply 1 or 0 for each lock.
local renewed = {}
for i = 1, #KEYS do
  if redis.call('hexists', KEYS[i], ARGV[i + 1]) == 1 then
    redis.call('pexpire', KEYS[i], ARGV[1])
    renewed[i] = 1
  else
    renewed[i] = 0
  end
end
return renewed
