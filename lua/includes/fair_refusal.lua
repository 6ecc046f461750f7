-- uses: refusal, fair_head

-- As `refusal`, for a fair lock: a free one goes to the head of its queue. Third: that head.
local function fair_refusal(q, holder, hold_count)
  local why, remaining = refusal(q.lock, holder, hold_count)
  if why or remaining ~= -2 then return why, remaining end
  local head, is_new = fair_head(q)
  if not head or head == holder then return nil, remaining, head end
  if is_new then redis.pcall(q.publish, q.channel .. ':' .. head, '0') end
  -- Nobody knows when the head will come, so whoever asks is to ask again.
  return -1, remaining
end
