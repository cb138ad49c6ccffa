#!lua
-- Set one field of a seeded defect and write its audit entry; idempotent.
-- KEYS[1] seeded   hash    the seeded defect of the tenant
-- KEYS[2] audit    stream  audit log
-- ARGV[1] field    text    the field
-- ARGV[2] body     text    its value
-- ARGV[3] event    text    the audit entry with its seal, or empty for none
-- ARGV[4] keep_ms  int     lifetime of the hash from now on
-- Returns:
--   {"done"}
--   {"same"}  it was set before
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 0 then return {'same'} end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
if ARGV[3] ~= '' then
  write_event(KEYS[2], ARGV[3], now_ms())
end
return {'done'}
