-- uses: rw_wait_over

-- Notes that a reader entered while others waited: a free lock is no longer kept for readers.
local function read_begins(waiting, holder)
  redis.call('ZREM', waiting, 'turn')
  rw_wait_over(waiting, holder)
end
