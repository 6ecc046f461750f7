-- uses: count_at
--[[
  latch_count: how many count-downs are left.
  KEYS[1]  latch   STRING  how many count-downs are left; absent while it is open
  KEYS[2]  opened  STRING  the call that opened it last
  Reply    {count, opened}  0 or less if it is open; the text is empty if no call opened it lately
]]
local count = count_at(KEYS[1])
if type(count) == 'table' then return count end
return {count or 0, redis.call('GET', KEYS[2]) or ''}
