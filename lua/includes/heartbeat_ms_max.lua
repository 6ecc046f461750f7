-- No heartbeat of ours lasts longer: a test compares it with the one in `src/hold/core.rs`. One that lies
-- further ahead was noted before the server's clock was set back.
local heartbeat_ms_max = 3000
