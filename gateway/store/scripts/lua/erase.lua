#!lua
-- Erase an ended approval and its other data in the tenant. Its id stays in lists until
-- these expire.
-- include lifetimes.lua
-- KEYS[1] head      hash    head of the approval
-- KEYS[2] document  string  the rest of it
-- KEYS[3] facts     hash    facts of the thread of its run
-- KEYS[4] outbox    stream  events
-- KEYS[5] audit     stream  audit log
-- KEYS[6] rejected  hash    rejected calls of the thread
-- KEYS[7] seen_by   hash    reviewers' progress through its full view
-- KEYS[8] turn      string  the verdicts of its turn
-- KEYS[9] begun     hash    the turn's auto-approved calls, with their results
-- ARGV[1] rev        text   the revision that was read
-- ARGV[2] calls      json   array of fingerprints of its calls
-- ARGV[3] precedents json   rows of {key, call, body}: the remains of its precedents
-- ARGV[4] events     json   array of event texts
-- ARGV[5] is_person  int    1 to erase the thread's requesters as well; else 0
-- ARGV[6] over       text   replacement for the verdicts; "" for an approval without a turn
-- ARGV[7] keep_ms    int    lifetime of ended approvals, milliseconds
-- ARGV[8] is_dry     int    1 to change nothing
-- Returns:
--   {"erased"}   or would be, in a dry run
--   {"open"}     it has an open item
--   {"running"}  the run of its thread is active: its agent may ask for the result
--   {"moved"}    it is gone, or has another version: read it again
if (redis.call('HGET', KEYS[1], 'rev') or '') ~= ARGV[1] then return {'moved'} end
if is_open(KEYS[1]) then return {'open'} end
-- The agent may ask for a result while its run is active, or has an open approval.
if redis.call('HGET', KEYS[3], 'run') == 'open' or has_open(KEYS[3]) then return {'running'} end
if ARGV[8] == '1' then return {'erased'} end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[7], KEYS[9])
-- A repeated submission would open another record under an id that processes remember.
if ARGV[6] ~= '' then redis.call('SET', KEYS[8], ARGV[6], 'PX', ARGV[7]) end
if ARGV[5] == '1' then redis.call('HDEL', KEYS[3], 'facts') end
for _, call in ipairs(cjson.decode(ARGV[2])) do redis.call('HDEL', KEYS[6], call) end
for _, row in ipairs(cjson.decode(ARGV[3])) do
  local kept = string.match(redis.call('HGET', row[1], row[2]) or '', '^%d+ %d+ %l+ ')
  if kept then redis.call('HSET', row[1], row[2], kept .. row[3]) end
end
announce(KEYS[4], KEYS[5], ARGV[4], now_ms())
return {'erased'}
