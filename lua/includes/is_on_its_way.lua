-- Nil until the server was asked.
local slot_is_still, may_not_ask

-- Whether this reply says that the user lacks a right. The words of Redis up to 7.0 and of later versions.
local function is_denied(reply)
  local why = type(reply) == 'table' and reply.err or ''
  return string.find(why, 'The user executing the script', 1, true)
    or string.find(why, 'ACL failure in script', 1, true)
end

-- Whether a key that is missing, or could not be read, may be on its way to this node of a cluster, or from it, because
-- the keys of a moving slot are moved one by one. `seen` is the reply to a look at this key alone. Rights are by key,
-- so a key that could not be read never counts as missing. For one key that is not in KEYS, the node to which the slot
-- moves does not report the move: the key is just missing. For two keys, `lock`, which is there, and the missing one,
-- the command fails. A slot that does not move is asked about once in a call. Then returns whether this is unknown
-- because the user may not ask.
local function is_on_its_way(lock, key, seen)
  if type(seen) ~= 'number' then return true, is_denied(seen) end
  if slot_is_still == nil then
    local there = redis.pcall('EXISTS', lock, key)
    slot_is_still, may_not_ask = there == 1, is_denied(there)
  end
  return not slot_is_still, may_not_ask
end
