-- Nil until it was asked.
local slot_is_still

-- Whether a key that is missing may be on its way to this node of a cluster, or from it: the keys of a slot that
-- moves go over one by one. A node does not say so of one key that is not in KEYS: where the slot goes, it is just
-- missing. Of several keys, `lock` that is there and one that is missing, it does: the command fails. A slot that
-- does not move is asked about once in a call.
local function is_on_its_way(lock, key)
  if slot_is_still == nil then slot_is_still = redis.pcall('EXISTS', lock, key) == 1 end
  return not slot_is_still
end
