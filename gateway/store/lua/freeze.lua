#!lua
-- Set or lift freezes with the sealed list of them; compare and set.
-- KEYS[1] frozen    hash    pauses of agents; the list of freezes stands beside it
-- KEYS[2] outbox    stream  events
-- KEYS[3] audit     stream  audit log
-- ARGV[1] before    text    seal of the list that was read, in hex; "" for none
-- ARGV[2] after     text    the list from now on
-- ARGV[3] removed   json    array of names of pauses
-- ARGV[4] events    json    array of event texts
-- Returns:
--   {"done"}
--   {"moved"}  the list is another one: read it again
if has_other_list(KEYS[1], ARGV[1]) then return {'moved'} end
local now = now_ms()
redis.call('SET', KEYS[1] .. '_sealed', ARGV[2])
for _, name in ipairs(cjson.decode(ARGV[3])) do redis.call('HDEL', KEYS[1], name) end
announce(KEYS[2], KEYS[3], ARGV[4], now)
return {'done'}
