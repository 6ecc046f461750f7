-- uses: rw_wait_over

-- A reader entered while somebody waited: a free lock is no longer kept for readers.
local function read_begins(waiting, holder)
  redis.call('ZREM', waiting, 'turn')
  rw_wait_over(waiting, holder)
end
