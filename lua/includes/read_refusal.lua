-- uses: must_be_lock, writer_first

-- Nil if a holder may read, otherwise the rest of the lock's lease (-1: unknown). Then the remaining lease, whether
-- anyone waits, and some fields of a lock with readers.
local function read_refusal(lock, waiting, holder, waited_ms)
  local seen
  local remaining = redis.call('PTTL', lock)
  if remaining ~= -2 then
    local held = redis.call('HMGET', lock, 'mode', holder)
    -- A repeat.
    if held[2] then return nil, remaining end
    seen = must_be_lock(lock, remaining)
    -- A hash without a mode is another kind of lock.
    if held[1] ~= 'read' then return remaining, remaining end
  end
  local is_writer_first, anybody_waits = writer_first(waiting, holder, waited_ms)
  if is_writer_first then return math.max(remaining, -1), remaining end
  return nil, remaining, anybody_waits, seen
end
