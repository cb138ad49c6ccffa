#!lua
-- Announce that a run began, once for each input, or that it ended, once for each
-- checkpoint that it ends at. The end of the run ends what keeps its facts, in the same
-- step: a process that was paused after it must not end it for a later run.
-- include lifetimes.lua
-- KEYS[1] facts      hash    facts of the thread
-- KEYS[2] outbox     stream  events
-- KEYS[3] audit      stream  audit log
-- ARGV[1] what       text    begun; ended; or which report of metrics
-- ARGV[2] mark       text    the input, where the thread ends, or what is reported
-- ARGV[3] outbox_event text  the event, perhaps with the final message, with its seal
-- ARGV[4] audit_event  text  the same for the audit log, without it, with its seal
-- ARGV[5] keep_ms    int     lifetime of facts that no run of the thread keeps
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
-- Also when this end was announced before: a run that changed nothing ends at the checkpoint
-- where the one before ended.
if ARGV[1] == 'ended' then redis.call('HDEL', KEYS[1], 'run') end
retain_facts(KEYS[1], ARGV[5])
if is_new then return {'announced'} end
return {'known'}
