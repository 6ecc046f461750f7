-- uses: rw_wait_over

-- A reader entered while others waited: stop keeping a free lock for readers.
local function read_begins(waiting, holder)
  redis.call('ZREM', waiting, 'turn')
  rw_wait_over(waiting, holder)
end
