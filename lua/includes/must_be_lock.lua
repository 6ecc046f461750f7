-- Fails if the key holds a hash that is no lock. A lock has a lease, and holders named `uuid:thread` as in Redisson. A
-- read-write lock also has `mode`. Any other hash belongs to an application. Looks at three fields at most, and returns
-- them, each with its value.
local function must_be_lock(lock, remaining)
  local holders, seen = 0, nil
  if remaining ~= -1 then
    seen = redis.call('HRANDFIELD', lock, 3, 'WITHVALUES')
    for i = 1, #seen, 2 do
      local field = seen[i]
      -- A uuid has 36 characters, and a colon (58) follows.
      if string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d') and string.byte(field, 37) == 58 then
        holders = holders + 1
      elseif field ~= 'mode' then
        holders = -2
      end
    end
  end
  -- Raised as text, because Redis 6 accepts nothing else.
  if holders < 1 then error('WRONGTYPE the key holds no lock: it has no lease, or no holders', 0) end
  return seen
end
