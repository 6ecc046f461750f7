-- uses: refusal, fair_head

-- Like `refusal`, for a fair lock: a free one goes to the head of its queue. Third: that head, if it is this holder;
-- fourth: another waiter for the caller to wake. Fifth: who has the lock.
local function fair_refusal(lock, queue, timeouts, alive, holder, left)
  local why, remaining, held_by = refusal(lock, holder, left)
  if why or remaining ~= -2 then return why, remaining, nil, nil, held_by end
  local head, is_new, until_ms = fair_head(lock, queue, timeouts, alive)
  if not head or head == holder then return nil, remaining, head end
  -- The head's next call is at an unknown time, so the caller must poll. Redisson sends the next waiter no message when the
  -- wait of the first one ends at its turn, so that one may sleep for the lease that it was told.
  return -1, remaining, nil, (is_new or not until_ms) and head
end
