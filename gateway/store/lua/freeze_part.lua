#!lua
-- Set or lift a freeze in one shard of a tenant that is split, unless a newer change of
-- it is there. The same change may come any number of times, from any process.
-- KEYS[1] frozen    hash    what is frozen of the tenant
-- KEYS[2] changes   hash    by name, the newest change: at_ms, a space, the change
-- KEYS[3] outbox    stream  events
-- KEYS[4] audit     stream  audit log
-- ARGV[1] name      text    of the freeze
-- ARGV[2] at_ms     int     when it was changed; a later change wins
-- ARGV[3] body      json    the freeze, or empty where it is lifted
-- ARGV[4] change    json    the change, for others to repeat
-- ARGV[5] paused    text    name of the pause that ends with it, or empty
-- ARGV[6] events    json    rows of [at_ms, event text], those of changes before as well:
--                           what was told with a change that was here is not told again
-- ARGV[7] keep_ms   int     how long the end of a freeze is known
-- ARGV[8] before    text    seal of the list of freezes that was read, in hex; "" for none
-- ARGV[9] after     text    the list from now on
-- Returns:
--   {"done"}
--   {"same"}  this change is there already
--   {"older"} a newer one is there
--   {"moved"} the list is another one: read it again
local now = now_ms()
local at = tonumber(ARGV[2])
local row = ARGV[2] .. ' ' .. ARGV[4]
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known == row then return {'same'} end
local before = 0
if known then
  before = tonumber(string.match(known, '^%d+'))
  -- Of two changes at one moment the freeze wins; of two freezes, either, but the same
  -- in every shard.
  local is_frozen = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
  local loses = before == at and ((is_frozen and ARGV[3] == '')
    or (is_frozen == (ARGV[3] ~= '') and known > row))
  if before > at or loses then return {'older'} end
end
if has_other_list(KEYS[1], ARGV[8]) then return {'moved'} end
redis.call('SET', KEYS[1] .. '_sealed', ARGV[9])
redis.call('HSET', KEYS[2], ARGV[1], row)
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
else
  redis.call('HDEL', KEYS[1], ARGV[1])
  local pause = ARGV[5] ~= '' and redis.call('HGET', KEYS[1], ARGV[5])
  -- One that began since then is not what was lifted.
  if pause and (cjson.decode(pause).at_ms or 0) <= at then
    redis.call('HDEL', KEYS[1], ARGV[5])
  end
end
-- Names are chosen by people, so what has ended is not kept for ever.
local rows = redis.call('HGETALL', KEYS[2])
for index = 1, #rows, 2 do
  local when = tonumber(string.match(rows[index + 1], '^%d+')) or 0
  if when < now - tonumber(ARGV[7]) and redis.call('HEXISTS', KEYS[1], rows[index]) == 0 then
    redis.call('HDEL', KEYS[2], rows[index])
  end
end
local untold = {}
for _, event in ipairs(cjson.decode(ARGV[6])) do
  if event[1] > before then table.insert(untold, event[2]) end
end
if #untold > 0 then announce(KEYS[3], KEYS[4], cjson.encode(untold), now) end
return {'done'}
