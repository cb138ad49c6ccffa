#!lua
-- Record what an attempt to send a message came to.
-- KEYS[1] messages  hash  sealed messages by id, those given up too
-- KEYS[2] due       zset  ids of those to send, by when
-- KEYS[3] dead      zset  ids of those given up, by when
-- KEYS[4] state     hash  how the receiver did last: ok, failing (both ms), error
-- ARGV[1] id        text  of the message
-- ARGV[2] seen      text  the message as it was taken
-- ARGV[3] outcome   text  sent, later or dead; refused: it is not ours and is dropped
-- ARGV[4] after     text  the message as it is kept from now on; "" for sent
-- ARGV[5] delay_ms  int   when it is sent again
-- ARGV[6] error     text  why it was not sent
-- ARGV[7] most_dead int   how many are kept that were given up
-- ARGV[8] dead_ms   int   for how long
-- ARGV[9] keep_ms   int   how long the queue is kept after its last write
-- Returns:
--   {"kept"}
--   {"moved"}  somebody else has recorded its end
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return {'moved'} end
local now = now_ms()
if ARGV[3] == 'sent' or ARGV[3] == 'refused' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('ZREM', KEYS[3], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
end
if ARGV[3] == 'later' then redis.call('ZADD', KEYS[2], now + ARGV[5], ARGV[1]) end
if ARGV[3] == 'dead' then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('ZADD', KEYS[3], now, ARGV[1])
  local over = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now - ARGV[8], 'LIMIT', 0, 100)
  local many = redis.call('ZCARD', KEYS[3]) - #over - tonumber(ARGV[7])
  if many > 0 then
    over = redis.call('ZRANGE', KEYS[3], 0, #over + many - 1)
  end
  for _, id in ipairs(over) do
    redis.call('ZREM', KEYS[3], id)
    redis.call('HDEL', KEYS[1], id)
  end
end
if ARGV[3] == 'sent' then
  redis.call('HSET', KEYS[4], 'ok', now)
  redis.call('HDEL', KEYS[4], 'failing', 'error')
elseif ARGV[3] ~= 'refused' then
  redis.call('HSETNX', KEYS[4], 'failing', now)
  redis.call('HSET', KEYS[4], 'error', ARGV[6])
end
live_on(KEYS, ARGV[9])
return {'kept'}
