-- What `mark_place` put into a score: until when the place is kept, what its waiter wants on its turn, and
-- whether it waits for the lock in braces.
local function read_place(score)
  local until_ms = math.floor(score)
  local wish = score - until_ms
  local is_in_braces = wish % 0.25 ~= 0
  if is_in_braces then wish = wish - 0.125 end
  return until_ms, wish == 0.25 and 'wake' or wish == 0.5 and 'grant_fenced' or 'grant', is_in_braces
end
