-- uses: spoilt_counter

-- Reads a fencing counter from its text. Returns an error reply unless it is a whole number below 2^53: beyond that Lua
-- would round, and give one token twice.
local function counter_of(key, text)
  local last = string.find(text, '^%d+$') and tonumber(text)
  if last and last < 9007199254740992 then return last end
  return spoilt_counter(key)
end
