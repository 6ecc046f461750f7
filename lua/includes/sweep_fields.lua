-- As many fields of a lock with many readers are checked at once for dead ones.
local sweep_fields = 16
