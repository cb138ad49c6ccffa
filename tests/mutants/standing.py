"""Break what a standing approval covers, counts and ends with."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RULES = "gateway/approvals/standing.py"
BOUNDS = "gateway/approvals/similar.py"
OPEN = "gateway/store/lua/open.lua"
SERVICE = "tests/service/test_standing.py"
ENDS = "tests/service/test_standing_ends.py"
GUARDS = "tests/store/test_standing_guards.py"
PURE = "tests/approvals/test_standing.py"
POLICY = "tests/policy/test_similar_rules.py"

STANDING_TABLE = (
    Mutant(
        "standing: an argument that is not free has to be equal",
        BOUNDS,
        "        if not self.has_equals(args):\n            return None\n",
        "",
        SERVICE,
    ),
    Mutant(
        "standing: no call has more than the amount of one",
        BOUNDS,
        "return found if found is not None and found <= self.each_micro else None",
        "return found",
        PURE,
    ),
    Mutant(
        "standing: no amount is rounded",
        BOUNDS,
        "return int(scaled) if scaled == scaled.to_integral_value() else None",
        "return int(scaled)",
        POLICY,
    ),
    Mutant(
        "standing: what the policy escalates is not covered",
        RULES,
        "if found.tier is not Tier.APPROVE or Verb.APPROVE not in found.allow:",
        "if Verb.APPROVE not in found.allow:",
        PURE,
    ),
    Mutant(
        "standing: a call that needs others is not covered",
        RULES,
        "return quorum.tally(found.requirement, item.votes_now, "
        "item.action_hash).is_met",
        "return True",
        PURE,
    ),
    Mutant(
        "standing: nobody's own covers what they ask for",
        RULES,
        "if any(quorum.is_among(one, call.principals) for one in givers(standing)):",
        "if False:",
        SERVICE,
    ),
    Mutant(
        "standing: another policy's covers nothing",
        RULES,
        "if standing.policy_digest != found.policy_digest:",
        "if False:",
        PURE,
    ),
    Mutant(
        "standing: it covers no more than its uses",
        RULES,
        "    if amount is None or len(standing.uses) >= bounds.uses:",
        "    if amount is None:",
        SERVICE,
    ),
    Mutant(
        "standing: it covers no more than its total",
        RULES,
        "return None if used_micro(standing) + amount > bounds.total_micro else amount",
        "return amount",
        SERVICE,
    ),
    Mutant(
        "standing: without Slack's word of now nothing is covered",
        RULES,
        "return is_given and now_ms - checked_ms <= CHECKED_FOR_MS",
        "return is_given",
        PURE,
    ),
    Mutant(
        "standing: a use is written only over what was read",
        OPEN,
        "if differs(head, row.as_read) or now >=",
        "if now >=",
        GUARDS,
    ),
    Mutant(
        "standing: nothing is opened after its time",
        OPEN,
        "or now >= tonumber(found[1] or '0')\n",
        "\n",
        GUARDS,
    ),
    Mutant(
        "standing: nothing is opened without Slack's word of now",
        OPEN,
        "    or now - checked > row.checked_ms then",
        "    then",
        GUARDS,
    ),
    Mutant(
        "standing: the same effect again goes to people",
        "gateway/service/standing.py",
        "is_first = not is_known and one.effect not in effects",
        "is_first = True",
        SERVICE,
    ),
    Mutant(
        "standing: what was taken back does not start",
        "gateway/approvals/revoking.py",
        "return None if is_covered else ended",
        "return None",
        ENDS,
    ),
    Mutant(
        "standing: no claim is written over a revocation",
        "gateway/store/lua/next_version.lua",
        "    if redis.call('HGET', base .. 'a:' .. row[1], '0:s') ~= row[2] then "
        "return true end\n",
        "",
        GUARDS,
    ),
    Mutant(
        "standing: a policy that was put back ends it",
        "gateway/policy_file.py",
        "lambda one: one.policy_digest != loaded",
        "lambda _: False",
        ENDS,
    ),
    Mutant(
        "standing: one that is not opened yet stays listed",
        "gateway/store/approval_indexes.py",
        '"ZREMRANGEBYSCORE", key, "-inf", now_ms',
        '"ZREMRANGEBYSCORE", key, "-inf", "+inf"',
        ENDS,
    ),
    Mutant(
        "standing: who gave it does not check what it let run",
        "gateway/approvals/quality_checks.py",
        "    people += item.cover.given_by if item.cover else ()\n",
        "",
        "tests/service/test_standing_spot_checks.py",
    ),
    Mutant(
        "standing: what triage wants people to see is not covered",
        "gateway/service/standing.py",
        "is_plain and raised is None and not one.has_no_opinion",
        "is_plain and not one.has_no_opinion",
        SERVICE,
    ),
    Mutant(
        "standing: a freeze ends it",
        "gateway/service/freezing.py",
        "await end_those(self._store, self._keys, is_stopped, FROZEN)",
        "is_stopped",
        ENDS,
    ),
    Mutant(
        "standing: a rejection of a similar call ends it",
        "gateway/service/standing.py",
        "    if calls:\n",
        "    if False:\n",
        ENDS,
    ),
    Mutant(
        "standing: a look ends what another policy ends",
        RULES,
        "        return POLICY_CHANGED\n",
        '        return ""\n',
        ENDS,
    ),
    Mutant(
        "standing: it is never claimed",
        "gateway/service/claiming.py",
        "if item.is_standing or not is_same_call(request, item):",
        "if not is_same_call(request, item):",
        SERVICE,
    ),
    Mutant(
        "standing: what people rejected before goes to people",
        "gateway/service/standing.py",
        "map(past.of_kind, PrecedentKind)",
        "map(past.of_kind, [PrecedentKind.DONE])",
        "tests/service/test_standing_precedents.py",
    ),
    Mutant(
        "standing: what triage could not look at goes to people",
        "gateway/service/standing.py",
        "raised is None and not one.has_no_opinion",
        "raised is None",
        "tests/service/test_standing_precedents.py",
    ),
    Mutant(
        "standing: nobody allows what their form did not show",
        "bot/listeners/standing.py",
        "if target.staged != _limits(offer):",
        "if False:",
        "tests/bot/listeners/test_allow_similar_form.py",
    ),
    Mutant(
        "standing: its copies show what is left",
        "bot/delivery/card_copies.py",
        "is_over(record) or record.is_standing",
        "is_over(record)",
        "tests/bot/test_standing_texts.py",
    ),
)
