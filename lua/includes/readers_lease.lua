-- uses: read_timeout, is_on_its_way

-- Returns the longest remaining lease of all readers but `gone`, -2 without a living reader. One that an operator took
-- the lease from has the longest. Looks no further than to the first with at least `enough`. Leases that may be moving
-- to another node have an unknown length: the lock then keeps its own lease. Then which lease the user may not look at,
-- if it is that.
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
