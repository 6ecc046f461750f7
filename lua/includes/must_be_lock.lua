-- Fails unless a hash that is there is a lock, whoever holds it. A lock has a lease, and fields of holders,
-- `uuid:thread` as Redisson calls them, of which a read-write lock has `mode` beside. All else is an
-- application's. Of a hash with any number of fields two are looked at.
local function must_be_lock(lock, remaining)
  local holders = 0
  if remaining ~= -1 then
    for _, field in ipairs(redis.call('HRANDFIELD', lock, 2)) do
      local uuid = string.match(field, '^(%x+%-%x+%-%x+%-%x+%-%x+):%-?%d')
      if uuid and #uuid == 36 then
        holders = holders + 1
      elseif field ~= 'mode' then
        holders = -2
      end
    end
  end
  -- Raised as text: Redis 6 knows nothing else.
  if holders < 1 then error('WRONGTYPE the key holds a hash without a lease or without holders', 0) end
end
