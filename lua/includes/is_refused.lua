-- Whether `pcall` caught an error that says nothing about the type of the key, such as a missing right.
local function is_refused(caught)
  return type(caught) == 'table' and caught.err and not string.find(caught.err, 'WRONGTYPE', 1, true)
end
