-- uses: read_timeout

-- What is left of the longest lease of all readers, -2 without a living reader. Looks no further than to
-- the first with at least `enough`.
local function readers_lease(lock, enough)
  local longest = -2
  local fields = redis.call('HGETALL', lock)
  for i = 1, #fields, 2 do
    -- Neither the mode nor a write hold has a number and such keys.
    for hold = tonumber(fields[i + 1]) or 0, 1, -1 do
      longest = math.max(longest, redis.call('PTTL', read_timeout(lock, fields[i], hold)))
      if longest >= enough then return longest end
    end
  end
  return longest
end
