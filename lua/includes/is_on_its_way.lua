-- Nil until it was asked.
local slot_is_still, is_denied

-- Whether a key that is missing may be on its way to this node of a cluster, or from it: the keys of a slot that
-- moves go over one by one. A node does not say so of one key that is not in KEYS: where the slot goes, it is just
-- missing. Of several keys, `lock` that is there and one that is missing, it does: the command fails. A slot that
-- does not move is asked about once in a call. Then whether that is not known, as the user may not ask.
local function is_on_its_way(lock, key)
  if slot_is_still == nil then
    local there = redis.pcall('EXISTS', lock, key)
    slot_is_still = there == 1
    -- The words of Redis up to 7.0, and of all later ones.
    local why = type(there) == 'table' and there.err or ''
    is_denied = string.find(why, 'The user executing the script', 1, true)
      or string.find(why, 'ACL failure in script', 1, true)
  end
  return not slot_is_still, is_denied
end
