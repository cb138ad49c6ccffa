#!lua
-- Forget the message that shows an approval, because it is gone or cannot change any
-- more: its buttons then refuse, and the card has to be posted again.
-- KEYS[1] card     hash  where the card stands
-- KEYS[2] outdated zset  the tenant's approvals whose card is missing or old
-- ARGV[1] approval text  its id
-- ARGV[2] place    text  the channel and the ts of the message
-- ARGV[3] keep_ms  int   for how long the card is missed
-- Returns:
--   {"lost"}
--   {"moved"}  another message shows it now
if redis.call('HGET', KEYS[1], 'at') ~= ARGV[2] then return {'moved'} end
-- It is not looked for, either. What people were told and which roles were asked stays: they are not asked again.
redis.call('HDEL', KEYS[1], 'at', 'rev', 'display', 'decision', 'posting')
redis.call('ZADD', KEYS[2], now_ms() + tonumber(ARGV[3]), listed(ARGV[1]))
return {'lost'}
