-- The score in `alive` of a waiter of ours. The whole part is the server ms until which its place is kept. The
-- fraction shows whether it waits for a lock with braces in its name (`{x}` has the queue of `x`, as in Redisson),
-- and what it wants `on_turn`:
--   wake          a message, after which it asks by itself
--   grant         the lock
--   grant_fenced  the lock, with a fencing token
-- The fraction is shared with clients of other versions. This piece and `read_place` are the only ones
-- that know it.
local function mark_place(lock, until_ms, on_turn)
  local wish = on_turn == 'wake' and 0.25 or on_turn == 'grant_fenced' and 0.5 or 0
  return until_ms + wish + (string.find(lock, '{', 1, true) and 0.125 or 0)
end
