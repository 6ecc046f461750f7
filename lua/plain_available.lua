-- uses: count_at
--[[
  plain_available: how many permits of a semaphore are available.
  KEYS[1]  permits  STRING  how many are available
  Reply    the number, which Redisson may have made negative | 0 also if there is no such semaphore
]]
return count_at(KEYS[1]) or 0
