-- Returns the error for a fencing counter that gives no token.
local function spoilt_counter(key)
  return redis.error_reply('WRONGTYPE the fencing counter ' .. key .. ' is not a number with room below 2^53; set it ' ..
    'to the last token that was granted, or delete it to continue with the microseconds of the clock')
end
