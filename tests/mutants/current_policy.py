"""Break what the current policy asks for at a decision, a claim and a rerun."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DECIDING = "gateway/approvals/deciding.py"
STRICTER = "tests/service/test_stricter_policy.py"
CHECKING = "gateway/protocol/schema_validation.py"
RECONCILING = "gateway/approvals/reconciling.py"
CLAIMED = "tests/service/test_claim_policy.py"
RUNS = "tests/attacks/test_runs.py"
COSTLY = "tests/attacks/test_costly_calls.py"
SILENCES = "tests/policy/test_load_silences.py"
ALWAYS = "gateway/service/turn_evaluation.py"
UNREAD = "tests/service/test_always_auto.py"

CURRENT_POLICY_TABLE = (
    Mutant(
        "at least one of a role lowers no number of approvals",
        "gateway/approvals/quorum.py",
        "found[names] = max(count, found.get(names, 0))",
        "found[names] = count",
        "tests/approvals/test_quorum.py",
    ),
    Mutant(
        "maker is not checker",
        DECIDING,
        "        not raised.requirement.editor_may_vote\n        or ",
        "        ",
        "tests/approvals/test_taking_back.py",
    ),
    Mutant(
        "a rule's requirement is joined and never dropped",
        "gateway/policy/effective_rules.py",
        "[*base, *(required(policy, name) for name in needs)]",
        "base",
        "tests/policy/test_requirements.py",
    ),
    Mutant(
        "current policy: a call that outlived its time is approved by nobody",
        "gateway/approvals/deciding.py",
        "_UNREAD if reading_of(item) else _outlived(context)",
        '_UNREAD if reading_of(item) else ""',
        STRICTER,
    ),
    Mutant(
        "current policy: time that people added is theirs",
        "gateway/approvals/timing.py",
        "min(ttl_ms + added_ms, LONGEST * ttl_ms)",
        "ttl_ms",
        STRICTER,
    ),
    Mutant(
        "current policy: a raised call has the time of its tier from then on",
        "gateway/approvals/deciding.py",
        "policy_now.tier is item.tier and policy_now.ttl_ms",
        "policy_now.ttl_ms",
        STRICTER,
    ),
    Mutant(
        "current policy: an edit fits its schema",
        DECIDING,
        "        or edits.edit_errors(schema, context.item.args, edit.args)\n",
        "",
        STRICTER,
    ),
    Mutant(
        "current policy: nobody approves what is frozen",
        DECIDING,
        "    if policy_now and policy_now.stopped and",
        "    if False and",
        "tests/service/test_freezes.py",
    ),
    Mutant(
        "current policy: a reason is asked for",
        "gateway/approvals/decision_context.py",
        "(*self.item.requires_reason, *now)",
        "(*self.item.requires_reason,)",
        STRICTER,
    ),
    Mutant(
        "silently: an empty key is refused",
        "gateway/policy/load.py",
        "        _check_empty(document)\n",
        "",
        SILENCES,
    ),
    Mutant(
        "silently: each part of a rule is tried",
        "gateway/policy/crosscheck.py",
        "[*parts, source]",
        "[source]",
        SILENCES,
    ),
    Mutant(
        "silently: what is to be hidden exists",
        "gateway/policy/crosscheck.py",
        "        yield from _path_problems(own, schemas[-1], base)",
        "        yield from ()",
        SILENCES,
    ),
    Mutant(
        "silently: as many people are listed as have to agree",
        "gateway/policy/eligibility.py",
        "if is_bounded and len(people) < needed:",
        "if False and len(people) < needed:",
        SILENCES,
    ),
    Mutant(
        "current policy: one person alone has nothing run again that needs two",
        RECONCILING,
        "    if count.is_met:\n        return _reconciled(",
        "    if True:\n        return _reconciled(",
        "tests/service/test_doubts.py",
    ),
    Mutant(
        "current policy: nothing runs again without the people it needs",
        RECONCILING,
        "return context.requirement if is_again else context.item.requirement",
        "return context.item.requirement",
        RUNS,
    ),
    Mutant(
        "current policy: who may not approve a call cannot have it run again",
        RECONCILING,
        "policy_now.tier is Tier.DENY or verb not in policy_now.allow",
        "policy_now.tier is Tier.DENY",
        RUNS,
    ),
    Mutant(
        "costly: a rule's pattern is compiled once",
        "gateway/policy/expressions.py",
        "changed = typed(tuple(quick))",
        "changed = typed(row)",
        COSTLY,
    ),
    Mutant(
        "costly: a schema's pattern takes linear time",
        CHECKING,
        '    "pattern": _pattern,\n',
        "",
        COSTLY,
    ),
    Mutant(
        "costly: no draft by name leads around our checks",
        CHECKING,
        "checker(_of_our_draft(schema), ",
        "checker(schema, ",
        COSTLY,
    ),
    Mutant(
        "costly: a keyword spends from the budget for each element",
        CHECKING,
        "                steps += len(instance)\n",
        "",
        "tests/attacks/test_costly_schemas.py",
    ),
    Mutant(
        "current policy: what the policy forbids does not run",
        "gateway/approvals/revoking.py",
        "    if policy_now.tier is Tier.DENY or not",
        "    if not",
        CLAIMED,
    ),
    Mutant(
        "current policy: a claim needs the votes that it asks for",
        "gateway/approvals/revoking.py",
        "    if quorum.tally(requirement, votes, item.action_hash).is_met:",
        "    if True:",
        CLAIMED,
    ),
    Mutant(
        "a call runs in the business state that people approved",
        "gateway/service/claiming.py",
        "    if approved.is_same(seen.state):",
        "    if True:",
        "tests/service/test_business_state.py",
    ),
    Mutant(
        "current policy: a click on an outdated card counts for nothing",
        "gateway/approvals/revoking.py",
        "version=approval.version + 1",
        "version=approval.version",
        CLAIMED,
    ),
    Mutant(
        "current policy: a cleared call is refused by a stricter policy",
        "gateway/service/submitting.py",
        "if not verdict.runs_unclaimed or tier.is_auto_approved:",
        "if True:",
        "tests/service/test_auto_approved_policy.py",
    ),
    Mutant(
        "a late report is never dropped",
        "gateway/approvals/executing.py",
        "item.reconciled_fence == fence:",
        "False:",
        "tests/service/test_doubts.py",
    ),
    Mutant(
        "a turn that opens unread runs nothing that was rejected",
        "gateway/store/lua/open.lua",
        "if redis.call('HEXISTS', KEYS[10], call) == 1 then return {'rejected'} end",
        "",
        UNREAD,
    ),
    Mutant(
        "a rule has a say in every call",
        ALWAYS,
        "        or rules.raising()\n",
        "",
        UNREAD,
    ),
    Mutant(
        "a window has a say in every call",
        ALWAYS,
        "        or any(window.covers(tool) for window in policy.windows.values())\n",
        "",
        UNREAD,
    ),
    Mutant(
        "a spot check may be drawn of every call",
        ALWAYS,
        "policy.spot_checks is not None or not all(map",
        "not all(map",
        UNREAD,
    ),
    Mutant(
        "a hint, a misfit and a question have a say in a call",
        ALWAYS,
        "not (call.hint or call.problem or call.is_question)",
        "True",
        UNREAD,
    ),
)
