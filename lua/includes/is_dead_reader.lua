-- uses: read_timeout, is_on_its_way

-- Whether a field of a read-write lock is a reader whose read holds have all expired. The leases of Redisson's readers
-- have such keys too. A reader is alive while one of its leases exists, may be on its way to another node, or may not
-- be read by the user.
local function is_dead_reader(lock, field, holds)
  -- Neither the mode nor a write hold has a number and such keys.
  local is_reader = string.find(field, '^[%x%-]+:%-?%d') and string.sub(field, -6) ~= ':write'
  for hold = is_reader and tonumber(holds) or 0, 1, -1 do
    local key = read_timeout(lock, field, hold)
    local seen = redis.pcall('EXISTS', key)
    if seen ~= 0 then return false end
    if hold == 1 then return not is_on_its_way(lock, key, seen) end
  end
  return false
end
