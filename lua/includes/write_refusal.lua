-- uses: must_be_lock, server_ms, readers_lease, sweep_readers

-- Why a holder cannot write: what is left of the lease of the lock; nil if it can. Then what is left of that lease, and
-- whether it waits.
local function write_refusal(lock, waiting, holder)
  local remaining = redis.call('PTTL', lock)
  if remaining ~= -2 then
    if redis.call('HEXISTS', lock, holder .. ':write') == 1 then return nil, remaining end
    local seen = must_be_lock(lock, remaining)
    if redis.call('HGET', lock, 'mode') ~= 'read' then return remaining, remaining end
    local left, denied = readers_lease(lock, -1)
    -- Fails, in the words of the server: readers that died would keep it out for as long as others read.
    if denied then redis.call('EXISTS', lock, denied) end
    if left ~= -2 then
      sweep_readers(lock, seen)
      return remaining, remaining
    end
    -- All its readers are dead; others that read with them have only kept the key.
    redis.call('DEL', lock)
  end
  local waits, turn, done = unpack(redis.call('ZMSCORE', waiting, holder, 'turn', 'done'))
  -- After a writer it is the turn of the readers that waited: a free lock is kept for them for a moment.
  -- More is left of that only if the server's clock was set back.
  local readers_turn_ms = 100
  local left = turn and done and tonumber(done) + readers_turn_ms - server_ms() or 0
  if left > 0 and left <= readers_turn_ms then return left, -2 end
  return nil, -2, waits
end
