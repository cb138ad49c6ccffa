"""List ways to break the core that some test has to notice.

Each row is a change of one place that an attacker, a crash or a tired developer
could make, the promise it would break, and the tests that must fail.
`make mutants` runs the table; a row that no test notices fails it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One way to break one promise."""

    promise: str
    path: str
    before: str
    after: str
    tests: str = "tests/approvals tests/service"


DECIDING = "gateway/approvals/deciding.py"
QUORUM = "gateway/approvals/quorum.py"
LUA = "gateway/store/lua"
AGENTS = "gateway/service/agents.py"

TABLE = (
    Mutant(
        "a late click is refused",
        f"{LUA}/decide.lua",
        "if state == 'pending' and now >=",
        "if state == 'never' and now >=",
        "tests/races/test_store_guards.py",
    ),
    Mutant(
        "a late click is refused",
        DECIDING,
        "item.is_pending and frame.now_ms >= approval.expires_at_ms",
        "False",
    ),
    Mutant(
        "one decision wins",
        f"{LUA}/decide.lua",
        "if rev ~= ARGV[3] or state ~= ARGV[4]",
        "if false or state ~= ARGV[4]",
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
        "if any(principal.is_same(reviewer.person) for principal in principals):",
        "if any(False for principal in principals):",
    ),
    Mutant(
        "an empty role approves nothing",
        QUORUM,
        "    if not any(role.users or role.usergroups for role in demand.of):",
        "    if not demand.of:\n        return None\n    if False:",
        "tests/approvals",
    ),
    Mutant(
        "unresolved groups approve nothing",
        QUORUM,
        "    if reviewer.usergroups is None and any(",
        "    if reviewer.usergroups is None:\n        return None\n    if any(",
    ),
    Mutant(
        "only members decide",
        QUORUM,
        "    if reviewer.standing is not Standing.MEMBER:",
        "    if reviewer.standing is Standing.UNKNOWN:",
    ),
    Mutant(
        "two people means two people",
        QUORUM,
        "(vote.by.team, vote.by.user): frozenset(vote.roles)",
        "(vote.at_ms, vote.by.user, id(vote)): frozenset(vote.roles)",
        "tests/approvals tests/races/test_lifecycle_machine.py",
    ),
    Mutant(
        "a role that has to be there is there",
        QUORUM,
        "sum(role in roles for roles in own) >= needed",
        "True",
    ),
    Mutant(
        "an edit voids earlier votes",
        DECIDING,
        "edited = frame.item.with_(action=document, edit=record, votes=())",
        "edited = frame.item.with_(action=document, edit=record)",
    ),
    Mutant(
        "votes count for one hash only",
        QUORUM,
        "        if vote.action_hash == action_hash and vote.roles",
        "        if vote.roles",
        "tests/approvals/test_quorum.py",
    ),
    Mutant(
        "a raising editor becomes a principal",
        DECIDING,
        "principals = (*raised.principals, frame.reviewer.person)",
        "principals = raised.principals",
    ),
    Mutant(
        "a tier is never lowered",
        DECIDING,
        "tier = join(item.tier, judged.tier)",
        "tier = judged.tier",
    ),
    Mutant(
        "undeclared arguments are refused in an edit",
        "gateway/approvals/edits.py",
        "Draft202012Validator(closed(schema))",
        "Draft202012Validator(schema)",
    ),
    Mutant(
        "one authorization executes once",
        f"{LUA}/claim.lua",
        "if left > 0 then return {'busy', left} end",
        "if left > 0 then return take(ARGV[7]) end",
    ),
    Mutant(
        "nothing runs that was not authorized",
        f"{LUA}/claim.lua",
        "if state == 'authorized' then",
        "if state == 'authorized' or state == 'pending' or state == 'rejected' then",
        "tests/races/test_store_guards.py",
    ),
    Mutant(
        "a doubt is not retried",
        f"{LUA}/claim.lua",
        "if ARGV[6] == '1' then return take(ARGV[7]) end",
        "do return take(ARGV[7]) end",
    ),
    Mutant(
        "a zombie cannot finish",
        f"{LUA}/finish.lua",
        "local owned = redis.call('HGET', KEYS[1], i .. ':f') == ARGV[3]",
        "local owned = true",
    ),
    Mutant(
        "a claim is for the very call",
        AGENTS,
        "return asked == kept and request.tool == item.tool",
        "return asked[:2] == kept[:2]",
    ),
    Mutant(
        "tenants are apart",
        AGENTS,
        "if loaded.approval.tenant != self._tenant:",
        "if not loaded.approval.tenant:",
    ),
    Mutant(
        "a record changed behind our back does not run",
        "gateway/store/codec.py",
        'if digest.to_raw(stored.action_hash) != head[f"{index}:h"]:',
        "if False:",
    ),
    Mutant(
        "a batch is bound to its order and ids",
        "gateway/approvals/digest.py",
        '{"i": index, "id": item, "hash": digest}',
        '{"i": 0, "id": "", "hash": digest}',
    ),
    Mutant(
        "duplicate keys are refused",
        "gateway/approvals/strict_json.py",
        "    if len(members) != len(pairs):",
        "    if not members and pairs:",
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
        "if known then return {'exists', known} end",
        "",
        "tests/races/test_store_guards.py",
    ),
    Mutant(
        "a decision brings its job",
        f"{LUA}/decide.lua",
        "enqueue(KEYS[6], ARGV[13])",
        "",
    ),
    Mutant(
        "approve all is bound to what was seen",
        "gateway/service/reviews.py",
        "if not hmac.compare_digest(approval.digest, digest):",
        "if not digest:",
    ),
)
