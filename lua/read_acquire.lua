--[[
  read_acquire: let a holder read, or read once more, up to a given number of read holds.
  KEYS[1]  lock        HASH    mode -> read | write, holder -> read holds, holder:write -> write holds
  KEYS[2]  writers     ZSET    waiting writer of ours -> server ms until which its heartbeat lasts
  KEYS[3]  token       STRING  last fencing token of the lock; read and written only if fenced
  ARGV[1]  holder
  ARGV[2]  hold_count  the number of read holds to reach
  ARGV[3]  lease_ms    lease from now; a longer one that already runs is kept
  ARGV[4]  fenced      1: a token with the grant
  ARGV[5]  is_new      1 a new holder | 0 one that reads or writes already
  ARGV[6]  waited_ms   how long it has waited
  Reply    nil held now | text held now, with this token
           remaining_ms (-1: unknown) held elsewhere, or writers first | -3 no such hold
]]
local lock, holder = KEYS[1], ARGV[1]
local why, remaining =
  read_refusal(lock, KEYS[2], holder, ARGV[5] == '1', tonumber(ARGV[6]))
if why then return why end
local token
if ARGV[4] == '1' then
  token = next_token(KEYS[3])
  if type(token) ~= 'string' then return token end
end
local refused = read_grant(lock, holder, ARGV[2], ARGV[3], remaining, ARGV[5] == '1')
if refused then return refused end
if token then redis.call('SET', KEYS[3], token) end
return token
