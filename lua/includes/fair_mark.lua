-- A name in braces has the queue of the name between them, as Redisson lays it out. So the heartbeat of
-- each waiter of ours has a mark: which of the two locks it waits for.
local function fair_mark(lock)
  return string.find(lock, '{', 1, true) and 0.125 or 0
end
