-- Whether `pcall` caught an error that does not tell what the key holds, such as a missing right.
local function is_refused(caught)
  return type(caught) == 'table' and caught.err and not string.find(caught.err, 'WRONGTYPE', 1, true)
end
