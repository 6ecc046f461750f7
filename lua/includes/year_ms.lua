-- A life for keys that have no end of their own.
local year_ms = 365 * 24 * 3600 * 1000
