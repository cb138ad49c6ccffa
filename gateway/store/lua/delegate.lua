#!lua
-- Set or lift a delegation of a reviewer's queue.
-- KEYS[1] delegations  hash    the delegations of one tenant
-- KEYS[2] outbox       stream  events
-- KEYS[3] audit        stream  audit log
-- ARGV[1] user         text    the delegating reviewer
-- ARGV[2] row          text    seal, start, delegate and end; or empty to end the
--                              delegation
-- ARGV[3] until_ms     int     the end
-- ARGV[4] event        text    the event, with its seal
-- ARGV[5] most         int     limit of delegating people
-- Returns:
--   {"done", until_ms}
--   {"full"}  the limit is reached, and this person has no delegation
--   {"same"}  there was no delegation to end
local now = now_ms()
local ends = tonumber(ARGV[3])
local last = 0
local rows = redis.call('HGETALL', KEYS[1])
local stood, others = false, 0
for index = 1, #rows, 2 do
  local ends = tonumber(string.match(rows[index + 1], ' (%d+)$')) or 0
  if ends <= now then
    redis.call('HDEL', KEYS[1], rows[index])
  elseif rows[index] == ARGV[1] then
    stood = true
  else
    last, others = math.max(last, ends), others + 1
  end
end
-- Limited, since each decision reads all of them.
if ARGV[2] ~= '' and not stood and others >= tonumber(ARGV[5]) then return {'full'} end
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  if not stood then return {'same'} end
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  last = math.max(last, ends)
end
-- Redis 7.0 has no lifetimes of fields. So the hash has the lifetime of its longest
-- row, and each writer drops the rows that have ended.
if last > 0 then redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', last)) end
announce(KEYS[2], KEYS[3], cjson.encode({ARGV[4]}), now)
return {'done', ends}
