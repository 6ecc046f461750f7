-- Returns the server's error text, code first, from an error that `pcall` caught. Redis 6 puts a line number in front.
local function error_text(caught)
  local text = type(caught) == 'table' and caught.err or tostring(caught)
  return string.match(text, '%u%u+ .*') or 'ERR ' .. text
end
