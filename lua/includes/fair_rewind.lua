-- uses: heartbeat_ms_max, mark_place, read_place

-- As many heartbeats are rewound in one call.
local rewound_max = 2000

-- The server's clock was set back: a place of ours is kept for longer than any heartbeat lasts. Such
-- places all end together, one heartbeat from now. The place of the head is rewound even for a user who
-- may not list the others.
local function fair_rewind(q, now, head, score)
  local latest = now + heartbeat_ms_max
  local function rewind(waiter, its_score)
    local until_ms, on_turn, is_in_braces = read_place(its_score)
    if until_ms > latest then
      redis.call('ZADD', q.alive, mark_place(latest, on_turn, is_in_braces), waiter)
    end
  end
  rewind(head, score)
  local last = redis.pcall('ZRANGE', q.alive, -rewound_max, -1, 'WITHSCORES')
  for i = 2, #last, 2 do rewind(last[i - 1], tonumber(last[i])) end
  return latest
end
