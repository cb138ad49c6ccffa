#!lua
-- Record a message in Slack, so that it is redacted when its retention ends.
-- KEYS[1] messages hash  messages about an approval, by channel and ts
-- KEYS[2] due      zset  approvals by when their messages are looked at
-- ARGV[1] place    text  channel and ts
-- ARGV[2] seal     bytes of the place
-- ARGV[3] member   bytes the approval, as sorted sets list it
-- ARGV[4] after_ms int   when it is looked at first
-- ARGV[5] most     int   how many messages of one approval are noted
-- ARGV[6] keep_ms  int   how long they are known, unless they are looked at
-- Returns:
--   {"noted"}
--   {"full"}  as many are noted
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then return {'full'} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('ZADD', KEYS[2], 'NX', now_ms() + tonumber(ARGV[4]), ARGV[3])
return {'noted'}
