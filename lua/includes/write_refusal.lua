-- uses: must_be_lock, server_ms, readers_lease, sweep_readers

-- Nil if a holder may write, otherwise the rest of the lock's lease. Then the rest of that lease, and whether the
-- holder is noted as waiting.
local function write_refusal(lock, waiting, holder)
  local remaining = redis.call('PTTL', lock)
  if remaining ~= -2 then
    if redis.call('HEXISTS', lock, holder .. ':write') == 1 then return nil, remaining end
    local seen = must_be_lock(lock, remaining)
    if redis.call('HGET', lock, 'mode') ~= 'read' then return remaining, remaining end
    local left, denied = readers_lease(lock, -1)
    -- Fails with the server's own error. Otherwise dead readers would keep the writer out for as long as others read.
    if denied then redis.call('EXISTS', lock, denied) end
    if left ~= -2 then
      sweep_readers(lock, seen)
      return remaining, remaining
    end
    -- All readers are dead. Other readers, which have left since, had kept the key alive.
    redis.call('DEL', lock)
  end
  local waits, turn, done = unpack(redis.call('ZMSCORE', waiting, holder, 'turn', 'done'))
  -- After a writer, a free lock is kept for a moment for the readers that waited. If more than that moment is left, the
  -- server's clock was set back.
  local readers_turn_ms = 100
  local left = turn and done and tonumber(done) + readers_turn_ms - server_ms() or 0
  if left > 0 and left <= readers_turn_ms then return left, -2 end
  return nil, -2, waits
end
