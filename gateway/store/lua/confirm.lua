#!lua
-- Record when Slack confirmed the roles of the givers of a standing approval.
-- KEYS[1] head     hash  the head of the approval
-- ARGV[1] asked_ms int   time of the request to Slack, by this server's clock
-- ARGV[2] seal    bytes  seal of this time
-- Returns:
--   {"confirmed"}
--   {"ended"}  it is not in force, and stays unchanged
if redis.call('HGET', KEYS[1], '0:s') ~= 'authorized' then return {'ended'} end
-- The revision stays, as for a heartbeat: the card's content does not change. The time
-- never goes back: of two bots, the later request counts.
if tonumber(redis.call('HGET', KEYS[1], 'checked') or '0') < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'checked', ARGV[1], 'checked_seal', ARGV[2])
end
return {'confirmed'}
