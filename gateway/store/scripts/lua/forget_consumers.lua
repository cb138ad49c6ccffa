#!lua
-- Delete idle consumers without pending entries from every group of a stream.
-- KEYS[1] stream   stream  the stream
-- ARGV[1] idle_ms  int     idle time after which a consumer is deleted, milliseconds
-- Returns:
--   {"done", count}  the number of deleted consumers
-- In one step: between a check and a deletion, a consumer could take an entry, which
-- would then be lost. The last active consumer stays, since its idle time is the
-- group's.
if redis.call('EXISTS', KEYS[1]) == 0 then return {'done', 0} end
local function facts(row)
  local found = {}
  for i = 1, #row, 2 do found[row[i]] = row[i + 1] end
  return found
end
local count = 0
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local name, consumers, newest = facts(group).name, {}, nil
  for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], name)) do
    local one = facts(row)
    table.insert(consumers, one)
    if newest == nil or one.idle < newest.idle then newest = one end
  end
  for _, one in ipairs(consumers) do
    if one ~= newest and one.pending == 0 and one.idle > tonumber(ARGV[1]) then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], name, one.name)
      count = count + 1
    end
  end
end
return {'done', count}
