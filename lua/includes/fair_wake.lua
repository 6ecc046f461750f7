-- Wakes the first waiter in the queue of a fair lock, even if its place is over.
local function fair_wake(q)
  local first = redis.pcall('LINDEX', q.queue, 0)
  if type(first) == 'string' then redis.pcall(q.publish, q.channel .. ':' .. first, '0') end
end
