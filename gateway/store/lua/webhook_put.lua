#!lua
-- Queue a message for a receiver, once.
-- KEYS[1] messages  hash  sealed messages by id, those given up too
-- KEYS[2] due       zset  ids of those to send, by when
-- KEYS[3] dead      zset  ids of those given up, by when
-- ARGV[1] id        text  of the message
-- ARGV[2] body      text  the message with its seal
-- ARGV[3] most      int   how many may wait
-- ARGV[4] seen      text  what was read of one that was given up; "" for a new one
-- ARGV[5] keep_ms   int   how long the queue is kept after its last write
-- Returns:
--   {"queued"}
--   {"known"}  it waits already, or it is not as it was read
--   {"full"}   as many wait
local found = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if found ~= ARGV[4] then return {'known'} end
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[3]) then return {'full'} end
if found ~= '' and redis.call('ZREM', KEYS[3], ARGV[1]) == 0 then return {'known'} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], now_ms(), ARGV[1])
live_on(KEYS, ARGV[5])
return {'queued'}
