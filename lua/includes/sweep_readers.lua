-- uses: is_dead_reader

-- About how many dead readers this call may still remove: bounds the time it blocks the server.
local sweeps_left = 500

-- Removes dead readers from a lock that others read, so that a waiting writer need not look at all of them each time.
-- Checks the fields that were `seen`, and goes on with other fields while there are dead readers among them.
local function sweep_readers(lock, seen)
  local sweep_fields = 16
  while true do
    local dead = {}
    for i = 1, #seen, 2 do
      if is_dead_reader(lock, seen[i], seen[i + 1]) then dead[#dead + 1] = seen[i] end
    end
    if #dead == 0 or sweeps_left <= 0 then return end
    sweeps_left = sweeps_left - redis.call('HDEL', lock, unpack(dead))
    seen = redis.call('HRANDFIELD', lock, sweep_fields, 'WITHVALUES')
  end
end
