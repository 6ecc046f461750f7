-- Whether there are braces in the name of a lock. `{x}` has the queue of `x`, as Redisson lays it out, so
-- each waiter of ours notes which of the two locks it waits for.
local function in_braces(lock)
  return string.find(lock, '{', 1, true) ~= nil
end
