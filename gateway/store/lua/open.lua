#!lua
-- Open the approvals of one turn, once; the same turn again gets its first answer.
-- KEYS[1] turn      string   the turn's verdicts
-- KEYS[2] thread    zset     the thread's approvals
-- KEYS[3] expiry    zset     deadlines of the shard
-- KEYS[4] outbox    stream   events
-- KEYS[5] audit     stream   audit log
-- KEYS[6..] records hash     head and blobs of each approval, in pairs
-- ARGV[1] keep_ms   int      lifetime of what is written, milliseconds
-- ARGV[2] verdicts  json     what the turn is answered with
-- ARGV[3] events    json     array of event texts
-- ARGV[4] approvals json     array of {id, ttl_ms, frozen, hashes, details}
-- Returns:
--   {"opened", now_ms}
--   {"exists", verdicts}
local known = redis.call('GET', KEYS[1])
if known then return {'exists', known} end

local now = now_ms()
local keep = tonumber(ARGV[1])
for index, approval in ipairs(cjson.decode(ARGV[4])) do
  local head, blobs = KEYS[4 + 2 * index], KEYS[5 + 2 * index]
  local expires = now + approval.ttl_ms
  redis.call('HSET', head, 'rev', 1, 'version', 1, 'n', #approval.hashes,
    'created', now, 'expires', expires)
  redis.call('HSET', blobs, 'frozen', approval.frozen)
  for i, hash in ipairs(approval.hashes) do
    local raw = hash:gsub('..', function(hex) return string.char(tonumber(hex, 16)) end)
    redis.call('HSET', head, (i - 1) .. ':s', 'pending', (i - 1) .. ':h', raw)
    redis.call('HSET', blobs, (i - 1) .. ':d', approval.details[i])
  end
  redis.call('PEXPIRE', head, keep + approval.ttl_ms)
  redis.call('PEXPIRE', blobs, keep + approval.ttl_ms)
  redis.call('ZADD', KEYS[3], expires, approval.id)
  redis.call('ZADD', KEYS[2], now, approval.id)
  redis.call('PEXPIRE', KEYS[2], keep + approval.ttl_ms)
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', keep)
announce(KEYS[4], KEYS[5], ARGV[3], now)
return {'opened', now}
