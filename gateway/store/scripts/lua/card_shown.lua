#!lua
-- Record the content of a card, and whether it is up to date.
-- include lifetimes.lua
-- KEYS[1] record     hash the head of the approval
-- KEYS[2] card       hash the card's place and content
-- KEYS[3] outdated   zset the tenant's approvals with a missing or outdated card
-- ARGV[1] approval   text its id
-- ARGV[2] rev        int  the approval's revision on the card
-- ARGV[3] display    text digest of the card's blocks
-- ARGV[4] decision   text digest of the text about required approvals
-- ARGV[5] has_copies int  1 if copies are drawn later, so the card stays listed; else 0
-- ARGV[6] keep_ms    int  lifetime if the record is missing, milliseconds
-- Returns:
--   {"shown"}
--   {"older"}  the card showed a newer revision before; it must be drawn again
local before = tonumber(redis.call('HGET', KEYS[2], 'rev')) or 0
redis.call('HSET', KEYS[2], 'rev', ARGV[2], 'display', ARGV[3], 'decision', ARGV[4])
live_as_long_as(KEYS[1], {KEYS[2]}, ARGV[6])
if before > tonumber(ARGV[2]) then
  redis.call('ZADD', KEYS[3], now_ms() + tonumber(ARGV[6]), listed(ARGV[1]))
  return {'older'}
end
redis.call('HDEL', KEYS[2], 'trouble')
if ARGV[5] == '0' then redis.call('ZREM', KEYS[3], listed(ARGV[1])) end
return {'shown'}
