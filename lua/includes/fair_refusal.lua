-- uses: refusal, fair_head

-- As `refusal`, for a fair lock: a free one goes to the head of its queue. Third: that head, if it is this
-- holder; fourth: the head if it is another one, which has become so just now and is to be woken.
local function fair_refusal(lock, queue, timeouts, alive, holder, hold_count, left)
  local why, remaining = refusal(lock, holder, hold_count, left)
  if why or remaining ~= -2 then return why, remaining end
  local head, is_new = fair_head(lock, queue, timeouts, alive)
  if not head or head == holder then return nil, remaining, head end
  -- Nobody knows when the head will come, so whoever asks is to ask again.
  return -1, remaining, nil, is_new and head
end
