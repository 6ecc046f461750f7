-- Reads a score of `mark_place`: until when the place is kept, and what the waiter wants on its turn. Nil if it waits
-- for the other lock with this queue.
local function read_place(lock, score)
  local until_ms = math.floor(score)
  local wish = score - until_ms - (string.find(lock, '{', 1, true) and 0.125 or 0)
  if wish % 0.25 ~= 0 then return nil end
  return until_ms, wish == 0.25 and 'wake' or wish == 0.5 and 'grant_fenced' or 'grant'
end
