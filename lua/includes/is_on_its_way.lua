-- Nil until it was asked.
local slot_is_still, may_not_ask

-- Whether the user may not do what has this reply: the words of Redis up to 7.0, and of all later ones.
local function is_denied(reply)
  local why = type(reply) == 'table' and reply.err or ''
  return string.find(why, 'The user executing the script', 1, true)
    or string.find(why, 'ACL failure in script', 1, true)
end

-- Whether a key that is missing, or that was not seen, may be on its way to this node of a cluster, or from it: the
-- keys of a slot that moves go over one by one. `seen` is the reply to a look at that key alone: rights are by key, so
-- one that was not seen is never taken for missing. A node does not say so of one key that is not in KEYS: where the
-- slot goes, it is just missing. Of several keys, `lock` that is there and one that is missing, it does: the command
-- fails. A slot that does not move is asked about once in a call. Then whether that is not known, as the user may
-- not ask.
local function is_on_its_way(lock, key, seen)
  if type(seen) ~= 'number' then return true, is_denied(seen) end
  if slot_is_still == nil then
    local there = redis.pcall('EXISTS', lock, key)
    slot_is_still, may_not_ask = there == 1, is_denied(there)
  end
  return not slot_is_still, may_not_ask
end
