#!lua
-- Announce the start of a run once for each input, or its end once for each final
-- checkpoint. The end also sets the lifetime of the thread's facts in the same step:
-- otherwise a paused process could set it later, during the next run.
-- include lifetimes.lua
-- KEYS[1] facts      hash    facts of the thread
-- KEYS[2] outbox     stream  events
-- KEYS[3] audit      stream  audit log
-- ARGV[1] what       text    begun; ended; or the kind of metrics report
-- ARGV[2] mark       text    the input, the final checkpoint, or the report's subject
-- ARGV[3] outbox_event text  the event with its seal, perhaps with the final message
-- ARGV[4] audit_event  text  the same for the audit log, without the message
-- ARGV[5] keep_ms    int     lifetime of the facts without a run, milliseconds
-- Returns:
--   {"announced"}
--   {"known"}  it was announced before
local is_new = redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2]
if is_new then
  local now = now_ms()
  write_event(KEYS[2], ARGV[3], now)
  write_event(KEYS[3], ARGV[4], now)
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
-- Also for a repeated announcement: a run without changes ends at the checkpoint of the
-- run before.
if ARGV[1] == 'ended' then redis.call('HDEL', KEYS[1], 'run') end
retain_facts(KEYS[1], ARGV[5])
if is_new then return {'announced'} end
return {'known'}
