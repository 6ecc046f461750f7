-- uses: read_timeout, is_on_its_way

-- Returns the longest remaining lease of all readers but `gone`, -2 if none is alive. A lease without an end, as an
-- operator may have made it, is the longest. Stops at the first lease of at least `enough`. If a lease may be moving to
-- another node, its length is unknown, and the result is infinite, so that the lock keeps its own lease. If the reason
-- is that the user may not read that lease, its key is returned as well.
local function readers_lease(lock, enough, gone)
  local longest = -2
  local fields = redis.call('HGETALL', lock)
  for i = 1, #fields, 2 do
    -- Neither the mode nor a write hold has a number and such keys.
    local holds = fields[i] ~= gone and tonumber(fields[i + 1]) or 0
    for hold = holds, 1, -1 do
      local key = read_timeout(lock, fields[i], hold)
      local left = redis.pcall('PTTL', key)
      if type(left) ~= 'number' or left == -2 then
        local is_away, denied = is_on_its_way(lock, key, left)
        if is_away then return math.huge, denied and key end
        left = -2
      end
      longest = math.max(longest, left == -1 and math.huge or left)
      if longest >= enough then return longest end
    end
  end
  return longest
end
