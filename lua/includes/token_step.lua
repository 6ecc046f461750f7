-- A counter of ours stands at a multiple of this, or at one more if it has to stay for ever. So one that
-- Redisson counts with, which adds 1, can be told from it.
local token_step = 64
