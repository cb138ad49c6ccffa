#!lua
-- Forget an approval's message, because it is gone or can no longer change: its buttons
-- are then refused, and the card has to be posted again.
-- KEYS[1] card     hash  the card's place and content
-- KEYS[2] outdated zset  the tenant's approvals with a missing or outdated card
-- ARGV[1] approval text  its id
-- ARGV[2] place    text  the channel and the ts of the message
-- ARGV[3] keep_ms  int   how long the card is listed as missing, milliseconds
-- Returns:
--   {"lost"}
--   {"moved"}  the card has another message now
if redis.call('HGET', KEYS[1], 'at') ~= ARGV[2] then return {'moved'} end
-- Nor is it searched for. Earlier reminders and mentions stay recorded and are not
-- repeated.
redis.call('HDEL', KEYS[1], 'at', 'rev', 'display', 'decision', 'posting')
redis.call('ZADD', KEYS[2], now_ms() + tonumber(ARGV[3]), listed(ARGV[1]))
return {'lost'}
