"""List ways to break the core that some test has to notice.

Each row is a change of one place, the promise it would break, and the tests that must
fail. `make mutants` runs the table; a row that no test notices fails it.
"""

from __future__ import annotations

from tests.mutants.audit import AUDIT_TABLE
from tests.mutants.collected import COLLECTED_TABLE
from tests.mutants.connection import CONNECTION_TABLE
from tests.mutants.current_policy import CURRENT_POLICY_TABLE
from tests.mutants.delivery import DELIVERY_TABLE
from tests.mutants.fences import FENCES_TABLE
from tests.mutants.gestures import GESTURES_TABLE
from tests.mutants.inquiries import INQUIRY_TABLE
from tests.mutants.lifetimes import LIFETIMES_TABLE
from tests.mutants.many_machines import MANY_MACHINES_TABLE
from tests.mutants.metrics import METRICS_TABLE
from tests.mutants.mutant import Mutant
from tests.mutants.never_happens import NEVER_HAPPENS_TABLE
from tests.mutants.outages import OUTAGES_TABLE
from tests.mutants.precedents import PRECEDENTS_TABLE
from tests.mutants.questions import QUESTION_TABLE
from tests.mutants.reach import REACH_TABLE
from tests.mutants.redaction import REDACTION_TABLE
from tests.mutants.scale import SCALE_TABLE
from tests.mutants.sealed import SEALED_TABLE
from tests.mutants.slack import SLACK_TABLE
from tests.mutants.standing import STANDING_TABLE
from tests.mutants.totals import TOTALS_TABLE
from tests.mutants.triage import TRIAGE_TABLE
from tests.mutants.trust import TRUST_TABLE
from tests.mutants.webhooks import WEBHOOKS_TABLE

DECIDING = "gateway/approvals/deciding.py"
QUORUM = "gateway/approvals/quorum.py"
LUA = "gateway/store/lua"
PRELUDE = f"{LUA}/prelude.lua"
POLICY_FILE = "gateway/policy_file.py"
FOLLOWING = "tests/test_policy_file.py"
WINDOWS = "tests/service/test_windows.py"
SLIDING = "tests/store/test_windows.py"
RACES = "tests/races/test_window_races.py"
FREEZES = "tests/service/test_freezes.py"
ATTENTION = "tests/service/test_attention.py"

TABLE = (
    Mutant(
        "half of a policy's file is not taken",
        POLICY_FILE,
        "if not is_still or (",
        "if False or (",
        FOLLOWING,
    ),
    Mutant(
        "a file that cannot be read does not replace the policy",
        POLICY_FILE,
        "raise SettingsError(self.problem)",
        "return load_policy('version: 1', '')",
        FOLLOWING,
    ),
    Mutant(
        "a late click is refused",
        "gateway/store/lua/next_version.lua",
        "change.before_ms > 0 and now >= change.before_ms",
        "false",
        "tests/races/test_store_guards.py",
    ),
    Mutant(
        "one decision wins",
        "gateway/store/lua/next_version.lua",
        "if (redis.call('HGET', head, 'rev') or '') ~= change.rev or age >",
        "if age >",
        "tests/races/test_store_guards.py",
    ),
    Mutant(
        "an old version is refused",
        DECIDING,
        "click.version != approval.version or click.action_hash != item.action_hash",
        "False",
    ),
    Mutant(
        "a borrowed hash is refused",
        DECIDING,
        "click.version != approval.version or click.action_hash != item.action_hash",
        "click.version != approval.version",
    ),
    Mutant(
        "a principal never votes",
        QUORUM,
        "    if is_among(reviewer.person, (*principals, *editors)):",
        "    if is_among(reviewer.person, editors):",
    ),
    Mutant(
        "who changed a call does not approve it where the policy forbids that",
        QUORUM,
        "    if is_among(reviewer.person, (*principals, *editors)):",
        "    if is_among(reviewer.person, principals):",
    ),
    Mutant(
        "an empty role approves nothing",
        QUORUM,
        "    if not any(role.users or role.usergroups for role in roles):",
        "    if not roles:\n        return None\n    if False:",
        "tests/approvals",
    ),
    Mutant(
        "unresolved groups approve nothing",
        QUORUM,
        "    if unresolved := unresolved_roles(reviewer, roles):",
        "    if unresolved_roles(reviewer, roles):\n        return None\n    if False:",
    ),
    Mutant(
        "only members decide",
        QUORUM,
        "    return _ACCOUNT_REASONS.get(reviewer.account)",
        "    return None",
    ),
    Mutant(
        "two people means two people",
        QUORUM,
        "vote.by.user: asked.intersection(vote.roles)",
        "(vote.at_ms, vote.by.user, id(vote)): asked.intersection(vote.roles)",
        "tests/approvals tests/races/test_lifecycle_machine.py",
    ),
    Mutant(
        "a role that has to be there is there",
        QUORUM,
        "(frozenset({name}), count) for name, count in part.at_least",
        "(frozenset({name}), 0) for name, count in part.at_least",
    ),
    Mutant(
        "an edit voids earlier votes",
        DECIDING,
        "        votes=(),\n        # The old texts",
        "        # The old texts",
    ),
    Mutant(
        "an edited call is described as it would run",
        DECIDING,
        'description=policy_now.description if policy_now else ""',
        "description=context.item.description",
    ),
    Mutant(
        "votes count for one hash only",
        QUORUM,
        "        if vote.action_hash == action_hash\n    }\n    return [roles",
        "    }\n    return [roles",
        "tests/approvals/test_quorum.py",
    ),
    Mutant(
        "a raising editor becomes a principal",
        DECIDING,
        "principals = (*raised.principals, context.reviewer.person)",
        "principals = raised.principals",
    ),
    Mutant(
        "a tier is never lowered",
        "gateway/approvals/raising.py",
        "tier = join(item.tier, policy_now.tier)",
        "tier = policy_now.tier",
    ),
    Mutant(
        "undeclared arguments are refused in an edit",
        "gateway/protocol/edits.py",
        "problems(closed(schema), args)",
        "problems(schema, args)",
    ),
    Mutant(
        "closing a schema lets nothing through that it refuses",
        "gateway/protocol/edits.py",
        "[*problems(schema, args), *found]",
        "found",
        "tests/protocol/test_schema_closing.py",
    ),
    Mutant(
        "one authorization executes once",
        "gateway/service/claiming.py",
        "if now_ms < item.claimed_until_ms:",
        "if False:",
    ),
    Mutant(
        "nothing runs that was not authorized",
        "gateway/service/claiming.py",
        "        if item.state is ItemState.AUTHORIZED:\n",
        "        if item.state in {ItemState.AUTHORIZED, ItemState.PENDING}:\n",
        "tests/races/test_store_guards.py",
    ),
    Mutant(
        "a doubt is not retried",
        "gateway/service/claiming.py",
        "        if item.idempotent and await",
        "        if await",
        "tests/service/test_executions.py",
    ),
    Mutant(
        "a zombie cannot finish",
        "gateway/approvals/executing.py",
        "is_owned = item.fence == fence",
        "is_owned = True",
    ),
    Mutant(
        "a claim is for the very call",
        "gateway/service/claiming.py",
        "return asked == kept and request.tool == item.tool",
        "return asked[:2] == kept[:2]",
    ),
    Mutant(
        "tenants are apart",
        "gateway/service/agents.py",
        "if loaded is None or loaded.approval.tenant != self._tenant:",
        "if loaded is None or not loaded.approval.tenant:",
    ),
    Mutant(
        "a batch is bound to its order and ids",
        "gateway/protocol/digest.py",
        '{"i": index, "id": item, "hash": digest}',
        '{"i": 0, "id": "", "hash": digest}',
        "tests/protocol/test_digest.py",
    ),
    Mutant(
        "duplicate keys are refused",
        "gateway/protocol/strict_json.py",
        "    if len(members) != len(pairs):",
        "    if not members and pairs:",
        "tests/protocol/test_strict_json.py",
    ),
    Mutant(
        "two calls with one id are denied",
        "gateway/service/proposals.py",
        "if seen[one.call.tool_call_id] > 1:",
        "if seen[one.call.tool_call_id] > 9:",
    ),
    Mutant(
        "a turn is submitted once",
        f"{LUA}/open.lua",
        "if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists'} end",
        "",
        "tests/races/test_store_guards.py",
    ),
    Mutant(
        "a decision brings its job",
        "gateway/store/lua/next_version.lua",
        "enqueue(change.jobs, change.job)",
        "",
    ),
    Mutant(
        "approve all approves nothing that has been escalated",
        "gateway/approvals/deciding.py",
        "if item.tier is Tier.ESCALATE and context.click.is_shared:",
        "if False:",
    ),
    Mutant(
        "calls at once see each other in a window",
        f"{LUA}/reserve.lua",
        "  hold(window, use, now + 2 * hold_ms)",
        "",
        RACES,
    ),
    Mutant(
        "a window is reserved once for each call",
        "gateway/store/lua/windows.lua",
        "  if not redis.call('ZSCORE', window, use) then",
        "  if true then",
        SLIDING,
    ),
    Mutant(
        "uses slide out of their window",
        "gateway/store/lua/windows.lua",
        "  for _, use in ipairs(past) do\n",
        "  for _, use in ipairs({}) do\n",
        SLIDING,
    ),
    Mutant(
        "what is refused is given back",
        "gateway/store/lua/windows.lua",
        "    if UNEXECUTED[state] then",
        "    if false then",
        WINDOWS,
    ),
    Mutant(
        "what ran stays counted",
        "gateway/store/lua/windows.lua",
        "      hold(row[1], row[2], now + row[3])",
        "      release(row[1], row[2])",
        WINDOWS,
    ),
    Mutant(
        "what the policy denies is given back",
        f"{LUA}/open.lua",
        "for _, row in ipairs(cjson.decode(ARGV[8])) do release(row[1], row[2]) end",
        "",
        WINDOWS,
    ),
    Mutant(
        "what is auto-approved counts",
        f"{LUA}/open.lua",
        "for _, row in ipairs(cjson.decode(ARGV[7])) do",
        "for _, row in ipairs({}) do",
        SLIDING,
    ),
    Mutant(
        "a pending call counts until it ends",
        f"{LUA}/open.lua",
        "    update_uses(head, i, approval.state, now, expires + keep)",
        "",
        WINDOWS,
    ),
    Mutant(
        "an item does not count itself twice",
        "gateway/store/lua/windows.lua",
        "    if row[1] == window and",
        "    if false and",
        WINDOWS,
    ),
    Mutant(
        "an edit moves what is reserved",
        "gateway/store/lua/next_version.lua",
        "for _, row in ipairs(uses_of(head, i)) do release(row[1], row[2]) end\n",
        "",
        WINDOWS,
    ),
    Mutant(
        "edits at once see each other in a window",
        "gateway/store/lua/next_version.lua",
        "if total + before > tonumber(inputs.totals[index]) then",
        "if false then",
        RACES,
    ),
    Mutant(
        "an ended reservation opens nothing",
        f"{LUA}/open.lua",
        "if ARGV[9] == '1' and redis",
        "if false and redis",
        SLIDING,
    ),
    Mutant(
        "a reservation ends before what it reserved",
        f"{LUA}/reserve.lua",
        "now + 2 * hold_ms",
        "now + hold_ms / 2",
        SLIDING,
    ),
    Mutant(
        "an expired call is given back",
        "gateway/store/lua/next_version.lua",
        "      update_uses(head, i, state, now, expires + keep)\n    end",
        "    end",
        WINDOWS,
    ),
    Mutant(
        "a freeze stops what was authorized",
        "gateway/store/lua/next_version.lua",
        "freeze_of(change.frozen, change.unfrozen)",
        "false",
        "tests/races/test_store_guards.py",
    ),
    Mutant(
        "only who is named for it lets things run again",
        "gateway/service/freezing.py",
        "        return unfreeze_requirement(",
        "        return freeze_requirement(",
        "tests/service/test_freezes.py",
    ),
    Mutant(
        "a freeze while evaluating is seen",
        f"{LUA}/open.lua",
        "if #names > 0 and freeze_of",
        "if false and freeze_of",
        FREEZES,
    ),
    Mutant(
        "a freeze denies what is new",
        "gateway/service/proposals.py",
        "    if freeze is not None:",
        "    if freeze is not None and freeze.is_pause:",
        FREEZES,
    ),
    Mutant(
        "a freeze takes back a verdict to run",
        "gateway/service/submitting.py",
        "kept = kept.about(turn).halted(load, ref.agent)",
        "kept = kept.about(turn)",
        FREEZES,
    ),
    Mutant(
        "a freeze is in the audit log",
        f"{LUA}/freeze.lua",
        "announce(KEYS[2], KEYS[3], ARGV[4], now)",
        "",
        FREEZES,
    ),
    Mutant(
        "an agent has no more waiting than its cap",
        f"{LUA}/open.lua",
        "redis.call('ZCARD', KEYS[8]) + held > limits.waiting",
        "redis.call('ZCARD', KEYS[8]) > 1e9",
        ATTENTION,
    ),
    Mutant(
        "an agent asks no faster than its rate",
        "gateway/service/proposals.py",
        "    if load.requests_10m + held >= protect.requests_per_10m:",
        "    if load.requests_10m < 0:",
        ATTENTION,
    ),
    Mutant(
        "what waits no longer makes room",
        "gateway/store/lua/next_version.lua",
        "      redis.call('ZREM', change.waiting, item)\n",
        "",
        ATTENTION,
    ),
    Mutant(
        "what was rejected is not asked again",
        "gateway/service/proposals.py",
        "rejection.turns_ago <= protect.same_rejected_within",
        "rejection.turns_ago < 0",
        ATTENTION,
    ),
    Mutant(
        "rejections in a row pause",
        "gateway/store/lua/next_version.lua",
        "if count >= rejection.after then",
        "if count < 0 then",
        ATTENTION,
    ),
    Mutant(
        "an approval ends a row of rejections",
        "gateway/store/lua/next_version.lua",
        "      redis.call('DEL', change.rejections)\n      ended",
        "      ended",
        ATTENTION,
    ),
    Mutant(
        "earlier voters are asked again at the last vote",
        "gateway/approvals/deciding.py",
        "        earlier = quorum.asked_again(",
        "        _ = quorum.asked_again(",
        "tests/approvals",
    ),
    Mutant(
        "whom Slack does not know completes nothing",
        "gateway/approvals/deciding.py",
        "        if doubtful:",
        "        if False:",
        "tests/approvals",
    ),
    Mutant(
        "no vote is recorded while Slack leaves a role of it open",
        "gateway/approvals/deciding.py",
        "if unresolved := quorum.unresolved_roles(context.resolved, roles):",
        "if unresolved := ():",
        "tests/approvals",
    ),
    Mutant(
        "who has left votes no more",
        QUORUM,
        "    if voter.account is not AccountKind.MEMBER:\n        return ()",
        "    if False:\n        return ()",
        "tests/approvals",
    ),
    *TRIAGE_TABLE,
    *TRUST_TABLE,
    *AUDIT_TABLE,
    *SEALED_TABLE,
    *QUESTION_TABLE,
    *INQUIRY_TABLE,
    *REACH_TABLE,
    *SLACK_TABLE,
    *STANDING_TABLE,
    *CURRENT_POLICY_TABLE,
    *DELIVERY_TABLE,
    *TOTALS_TABLE,
    *COLLECTED_TABLE,
    *FENCES_TABLE,
    *OUTAGES_TABLE,
    *GESTURES_TABLE,
    *LIFETIMES_TABLE,
    *MANY_MACHINES_TABLE,
    *METRICS_TABLE,
    *PRECEDENTS_TABLE,
    *SCALE_TABLE,
    *CONNECTION_TABLE,
    *NEVER_HAPPENS_TABLE,
    *WEBHOOKS_TABLE,
    *REDACTION_TABLE,
)
