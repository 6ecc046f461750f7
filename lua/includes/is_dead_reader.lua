-- uses: read_timeout

-- Whether a field of a read-write lock is a reader whose read holds have all expired. Those of Redisson
-- have the same keys: one of them that is there keeps its reader, as one of ours does.
local function is_dead_reader(lock, field, holds)
  -- Neither the mode nor a write hold has a number and such keys.
  local is_reader = string.find(field, '^[%x%-]+:%-?%d') and string.sub(field, -6) ~= ':write'
  for hold = is_reader and tonumber(holds) or 0, 1, -1 do
    if redis.call('EXISTS', read_timeout(lock, field, hold)) == 1 then return false end
    if hold == 1 then return true end
  end
  return false
end
