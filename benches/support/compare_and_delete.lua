-- The floor's release: delete the key if it still holds what its owner wrote.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
