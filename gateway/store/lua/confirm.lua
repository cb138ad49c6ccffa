#!lua
-- Record when Slack confirmed the roles of the givers of a standing approval.
-- KEYS[1] head     hash  small fields of the approval
-- ARGV[1] asked_ms int   when Slack was asked, by this server's clock
-- ARGV[2] seal    bytes  of that
-- Returns:
--   {"confirmed"}
--   {"ended"}  it is not in force, and is left as it is
if redis.call('HGET', KEYS[1], '0:s') ~= 'authorized' then return {'ended'} end
-- Without a new rev, like a heartbeat: nothing that its card shows changes by it.
-- Never back: of two bots the one that asked later knows better.
if tonumber(redis.call('HGET', KEYS[1], 'checked') or '0') < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'checked', ARGV[1], 'checked_seal', ARGV[2])
end
return {'confirmed'}
