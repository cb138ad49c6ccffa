#!lua
-- Open the approvals of one turn, once; the same turn again gets its first answer.
-- What the turn reserved counts from here on as its calls fared.
-- KEYS[1] turn        string  the turn's verdicts
-- KEYS[2] run         zset    the run's approvals, each "id namespace"
-- KEYS[3] expiry      zset    deadlines of the shard
-- KEYS[4] outbox      stream  events
-- KEYS[5] audit       stream  audit log
-- KEYS[6] reservation string  what the turn reserved
-- KEYS[7] frozen      hash    what is frozen of the tenant
-- KEYS[8] waiting     zset    the agent's pending items
-- KEYS[9] asked       zset    what the agent asked people for
-- KEYS[10] rejected   hash    what was rejected in the thread, and its turns since
-- KEYS[11] timers     zset    when people are reminded and others are called
-- KEYS[12..] records  hash    head and blobs of each approval, then each notice
-- ARGV[1] keep_ms     int     lifetime of what is written, milliseconds
-- ARGV[2] verdicts    json    what the turn is answered with
-- ARGV[3] events      json    array of event texts
-- ARGV[4] approvals   json    array of {id, listed, ttl_ms, timers, frozen, hashes,
--                             details, uses}; timers are rows of {kind, after_ms}
-- ARGV[5] names       json    array of names under which nothing may be frozen
-- ARGV[6] limits      json    {waiting, asked, asked_ms} of the agent
-- ARGV[7] counted     json    rows of {window, use, within_ms} that count from now on,
--                             whatever becomes of the calls
-- ARGV[8] refused     json    the same that count no longer
-- ARGV[9] is_reserved int     1 when the turn has to have its reservation
-- ARGV[10] noticed    json    array of what never changes of each notice
-- Returns:
--   {"opened", older}  what the run lists of its earlier approvals that may go on
--   {"exists", verdicts}
--   {"unreserved"}  judging took so long that the reservation ended: judge again
--   {"frozen"}      something was frozen meanwhile: judge again
--   {"crowded"}     the agent has or asked too much meanwhile: judge again
local known = redis.call('GET', KEYS[1])
if known then return {'exists', known} end
if ARGV[9] == '1' and redis.call('EXISTS', KEYS[6]) == 0 then return {'unreserved'} end
local names = cjson.decode(ARGV[5])
if #names > 0 and freeze_of(KEYS[7], names) then return {'frozen'} end

local now = now_ms()
local approvals = cjson.decode(ARGV[4])
local limits = cjson.decode(ARGV[6])
local held = 0
for _, approval in ipairs(approvals) do held = held + #approval.hashes end
redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[9], '-inf', now)
if held > 0 and (redis.call('ZCARD', KEYS[8]) + held > limits.waiting
  or redis.call('ZCARD', KEYS[9]) + held > limits.asked) then
  return {'crowded'}
end

local keep = tonumber(ARGV[1])
local older = {}
for _, listed in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local id = string.match(listed, '^%S+')
  if redis.call('ZSCORE', KEYS[3], id) then older[#older + 1] = listed end
end

for index, approval in ipairs(approvals) do
  local head, blobs = KEYS[10 + 2 * index], KEYS[11 + 2 * index]
  local expires = now + approval.ttl_ms
  redis.call('HSET', head, 'rev', 1, 'version', 1, 'n', #approval.hashes,
    'created', now, 'expires', expires)
  redis.call('HSET', blobs, 'frozen', approval.frozen)
  for i, hash in ipairs(approval.hashes) do
    local raw = hash:gsub('..', function(hex) return string.char(tonumber(hex, 16)) end)
    local item = approval.id .. '.' .. (i - 1)
    redis.call('HSET', head, (i - 1) .. ':s', 'pending', (i - 1) .. ':h', raw)
    redis.call('HSET', blobs, (i - 1) .. ':d', approval.details[i],
      (i - 1) .. ':w', approval.uses[i])
    for _, row in ipairs(cjson.decode(approval.uses[i])) do
      hold(row[1], row[2], expires + keep)
    end
    redis.call('ZADD', KEYS[8], expires, item)
    redis.call('ZADD', KEYS[9], now + limits.asked_ms, item)
  end
  redis.call('PEXPIRE', head, keep + approval.ttl_ms)
  redis.call('PEXPIRE', blobs, keep + approval.ttl_ms)
  redis.call('ZADD', KEYS[3], expires, approval.id)
  for _, timer in ipairs(approval.timers) do
    redis.call('ZADD', KEYS[11], now + timer[2], approval.id .. ' ' .. timer[1])
  end
  redis.call('ZADD', KEYS[2], now, approval.listed)
  -- Waiting, running and being kept take no approval as long as this.
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 4 * keep)
  redis.call('PEXPIRE', KEYS[2], keep + approval.ttl_ms)
end
for index, frozen in ipairs(cjson.decode(ARGV[10])) do
  local notice = KEYS[11 + 2 * #approvals + index]
  redis.call('HSET', notice, 'frozen', frozen, 'rev', 1, 'created', now)
  redis.call('PEXPIRE', notice, keep)
end
redis.call('PEXPIRE', KEYS[8], keep)
redis.call('PEXPIRE', KEYS[9], limits.asked_ms)
for _, row in ipairs(cjson.decode(ARGV[7])) do hold(row[1], row[2], now + row[3]) end
for _, row in ipairs(cjson.decode(ARGV[8])) do release(row[1], row[2]) end
redis.call('DEL', KEYS[6])
if redis.call('EXISTS', KEYS[10]) == 1 then redis.call('HINCRBY', KEYS[10], 'turns', 1) end
redis.call('SET', KEYS[1], ARGV[2], 'PX', keep)
announce(KEYS[4], KEYS[5], ARGV[3], now)
return {'opened', older}
