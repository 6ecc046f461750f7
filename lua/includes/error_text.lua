-- What the server said, code first, of an error that `pcall` caught. Redis 6 puts a line number in front.
local function error_text(caught)
  local text = type(caught) == 'table' and caught.err or tostring(caught)
  return string.match(text, '%u%u+ .*') or 'ERR ' .. text
end
