-- The whole number at a key, nil if there is none. An error reply if the key holds something else.
local function count_at(key)
  local text = redis.call('GET', key)
  if not text then return nil end
  local count = string.match(text, '^%-?%d+$') and tonumber(text)
  return count or redis.error_reply('WRONGTYPE the key holds a text that is no whole number')
end
