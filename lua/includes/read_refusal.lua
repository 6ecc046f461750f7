-- uses: must_be_lock, writer_first

-- Why a holder cannot read, or read once more: what is left of the lease of the lock (-1: unknown), or -3
-- if it has no hold to build on; nil if it can. Then the remaining lease, whether anyone waits, some fields of a lock
-- with readers, and this holder's number of read holds.
local function read_refusal(lock, waiting, holder, is_new, waited_ms)
  local seen
  local remaining = redis.call('PTTL', lock)
  if remaining ~= -2 then
    local held = redis.call('HMGET', lock, 'mode', holder, holder .. ':write')
    -- Neither its own write hold nor a waiting writer keeps a holder from reading.
    if held[2] or held[3] then return nil, remaining, nil, nil, held[2] end
    seen = must_be_lock(lock, remaining)
    -- A hash without a mode is another kind of lock.
    if is_new and held[1] ~= 'read' then return remaining, remaining end
  end
  if not is_new then return -3, remaining end
  local is_writer_first, anybody_waits = writer_first(waiting, holder, waited_ms)
  if is_writer_first then return math.max(remaining, -1), remaining end
  return nil, remaining, anybody_waits, seen
end
