#!lua
-- Tell the last words of a thread, once for each checkpoint that it ends at.
-- KEYS[1] facts      hash    facts of the thread
-- KEYS[2] outbox     stream  events
-- KEYS[3] audit      stream  audit log
-- ARGV[1] checkpoint text    where the thread ends
-- ARGV[2] told       json    the event with the words
-- ARGV[3] logged     json    the same for the audit log, without them
-- Returns:
--   {"told"}
--   {"known"}  it was told before
if redis.call('HGET', KEYS[1], 'told') == ARGV[1] then return {'known'} end
local now = now_ms()
redis.call('XADD', KEYS[2], '*', 'e', ARGV[2], 'at', now)
redis.call('XADD', KEYS[3], '*', 'e', ARGV[3], 'at', now)
redis.call('HSET', KEYS[1], 'told', ARGV[1])
return {'told'}
