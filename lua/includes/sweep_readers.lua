-- So many fields are looked at at once, and about so many dead readers taken out in one call: bounds
-- the time for which it blocks the server.
local sweep_fields, swept_max = 16, 500

-- Takes dead readers out of a lock that others read, so that a writer that waits need not look at all
-- of them each time. Looks at the fields that were `seen`, and at more as long as there are dead ones
-- among them.
local function sweep_readers(lock, seen)
  while true do
    local dead = {}
    for i = 1, #seen, 2 do
      if is_dead_reader(lock, seen[i], seen[i + 1]) then dead[#dead + 1] = seen[i] end
    end
    if #dead == 0 or swept_max <= 0 then return end
    swept_max = swept_max - redis.call('HDEL', lock, unpack(dead))
    seen = redis.call('HRANDFIELD', lock, sweep_fields, 'WITHVALUES')
  end
end
