-- How long Redisson keeps a waiter in a fair queue whose turn it is, unless its user sets another time.
local redisson_wait_ms = 300000
