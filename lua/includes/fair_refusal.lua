-- As `refusal`, for a fair lock: a free one goes to the head of its queue. Third: that head.
local function fair_refusal(lock, queue, timeouts, alive, holder, hold_count, channel, publish)
  local why, remaining = refusal(lock, holder, hold_count)
  if why or remaining ~= -2 then return why, remaining end
  local head, is_new = fair_head(lock, queue, timeouts, alive)
  if not head or head == holder then return nil, remaining, head end
  if is_new then redis.pcall(publish, channel .. ':' .. head, '0') end
  -- When it will come nobody knows, so who asks is to ask again.
  return -1, remaining
end
