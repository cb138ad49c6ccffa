"""Every rule of a policy is checked at load: names, types, windows, zones, people."""

from __future__ import annotations

import re

import pytest

from keyturn.gateway.policy.load import BadPolicy, load_policy

GOOD = """\
version: 1
defaults: {expires_in: 30m, needs: support}
roles: {support: {usergroups: [S0SUPPORT]}, senior: {users: [U0LEAD]}}
holidays: [12-25, 2026-04-03]
windows:
  refunded: {tools: [refund], by: args.customer, sum: args.amount, within: 24h}
  burst: {tools: ["*"], by: call.agent, sum: 1, within: 10m}
tiers:
  notify: {channel: "#notices"}
  approve: {expires_in: 2h, remind_at: 50%, escalate_at: 80%, escalate_to: "#leads"}
  escalate: {needs: [support, senior], escalate_at: 80, escalate_to: senior}
tools:
  refund:
    tier: approve
    args_schema:
      type: object
      properties:
        amount: {type: number}
        customer: {type: string}
        lines: {type: array, items: {$ref: '#/$defs/line'}}
        free: {}
      $defs: {line: {type: object, properties: {sku: {type: string}}}}
    raise:
      - {to: escalate, when: "args.amount > 500", because: over 500}
      - {to: deny, when: windows.refunded > 1000, because: over 1000 a day}
  look_up: {tier: auto, overridable: true}
agents: {night: {tools: {look_up: {tier: approve}}}}
protect: {pending_per_agent: 5, pause_after_rejections: 3}
"""
RULE = "args.amount > 500"


def problems(text: str) -> list[str]:
    with pytest.raises(BadPolicy) as caught:
        load_policy(text, "policy.yml")
    return [str(problem) for problem in caught.value.problems]


def test_a_policy_with_every_kind_of_rule_loads() -> None:
    policy = load_policy(GOOD, "policy.yml")

    assert policy.defaults.expires_in.total_seconds() == 1800
    assert policy.tiers.approve.remind_at == 50
    assert policy.windows["refunded"].within.total_seconds() == 86_400
    assert policy.tools["refund"].raise_[1].because == "over 1000 a day"
    assert policy.protect.same_rejected_within == 3
    assert set(policy.channels) == {"#agent-approvals", "#notices", "#leads"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "pause_after_rejections: 3",
            "unfreeze: seniors",
            "policy.yml:28: 'protect.unfreeze' names the role 'seniors', which is not ",
        ),
        ("because: over 500", "because: ''", "write one line of at most 200"),
        (RULE, "args.amount >", "policy.yml:24: 'tools.refund.raise[0].when':"),
        (RULE, "args.amoount > 1", "has no 'amoount' in its args_schema; did you mean"),
        (RULE, "args.lines.sku == 'a'", "has a list before 'sku'"),
        (RULE, "args.amount > '500'", "\"args.amount > '500'\" mixes types that CEL"),
        (RULE, "args.amount * 2 > 1", "so calculate with 2.0 and not 2"),
        (RULE, "args.free + 'a' > 5", "mixes types"),
        (RULE, "args.lines.exists(l, l.sku > 5)", "mixes types"),
        (RULE, "args.amount", "'args.amount' is neither true nor false but float;"),
        (RULE, "windows.brust > 5", "there is no window 'brust'; did you mean"),
        ("tools: [refund]", "tools: [look_up]", "window 'refunded' does not count"),
        ("tools: [refund]", "tools: [refnd]", "'refnd', which is not in 'tools'; did"),
        ("tools: [refund]", "tools: []", "policy.yml:6: 'windows.refunded.tools'"),
        ("tools: [refund]", 'tools: ["*"]', "not every tool has 'args.customer'; list"),
        ("by: args.customer", "by: customer", "cannot be counted by; write args.x"),
        ("sum: args.amount", "sum: args.lines", "has array there, which cannot be"),
        (", sum: args.amount", "", ".sum' is missing; add it."),
        ("sum: 1", "sum: 2", "'windows.burst.sum' is 2; text is needed here"),
        ("  burst:", "  Burst:", "'Burst' cannot name a window; use lower-case"),
        ("{users: [U0LEAD]}", "{}", "this role has no holders"),
        ("12-25", "12-32", "policy.yml:4: 'holidays[0]': '12-32' is not a day; write"),
        ("remind_at: 50%", "remind_at: 150%", "'150%' is not a share of the time;"),
        (
            "protect: {",
            "spot_checks: {share: 150%, of: [support]}\nprotect: {",
            "'150%' is not a share of the calls; write 5%",
        ),
        ("escalate_to: senior", "escalate_to: '@ana'", "is neither a role of this"),
        (", escalate_to: senior", "", "'escalate_at' and 'escalate_to' belong"),
        ("to: deny", "to: approve", "is 'approve', not above 'approve' of the tool it"),
        ("tier: auto, over", "tier: deny, over", "nothing overrides a denial, so"),
        (
            "needs: support}",
            "tier: deny, overridable: true}",
            "policy.yml:2: 'defaults': it is 'deny' and 'overridable'; nothing overri",
        ),
        ("pending_per_agent: 5", "pending_per_agent: 0", "'protect.pending_per_agent'"),
    ],
)
def test_a_mistake_in_a_rule_is_named_with_its_line_and_what_to_write(
    old: str, new: str, problem: str
) -> None:
    assert old in GOOD

    found = problems(GOOD.replace(old, new, 1))

    assert any(problem in one for one in found), found
    assert all(re.match(r"policy\.yml:[0-9]+: ", one) for one in found)


def test_a_rule_of_one_agent_is_checked_against_the_tools_schema() -> None:
    text = GOOD.replace(
        "{look_up: {tier: approve}}",
        "{refund: {raise: [{to: deny, when: args.amountt > 1, because: x}]}}",
    )

    (problem,) = problems(text)

    assert problem.startswith(
        "policy.yml:27: 'agents.night.tools.refund.raise[0].when'"
    )
    assert problem.endswith(
        "has no 'amountt' in its args_schema; did you mean 'amount'?"
    )


@pytest.mark.parametrize(
    "when",
    [
        "args.lines.exists(l, l.sku == 'A')",
        "args.amount > 5 || args.customer.size() > 5",
        "timestamp(args.customer) > now",
        "args.free[0] == 0.0 || args.free.deep.er == 'x'",
    ],
)
def test_a_rule_that_may_hold_for_some_call_loads(when: str) -> None:
    text = GOOD.replace(RULE, when)

    assert load_policy(text, "policy.yml").tools["refund"].raise_[0].when == when


@pytest.mark.parametrize(
    ("tried", "not_tried"),
    [
        ("args.a + args.b == true", "args.a + args.b + args.c == true"),
        (
            "[1.0, 2.0].all(x, [1.0].all(y, x + args.d == true))",
            f"{[1.0] * 48}.all(x, [1.0].all(y, x + args.d == true))",
        ),
    ],
)
def test_a_rule_that_would_take_long_to_try_loads_untried(
    tried: str, not_tried: str
) -> None:
    text = "version: 1\ntools: {t: {raise: [{to: deny, because: x, when: 'RULE'}]}}"

    assert "mixes types" in problems(text.replace("RULE", tried))[0]
    assert load_policy(text.replace("RULE", not_tried), "policy.yml")


def test_rules_windows_and_holidays_are_part_of_the_digest() -> None:
    digests = {
        load_policy(text, "p").digest
        for text in (
            GOOD,
            GOOD.replace("> 500", "> 501"),
            GOOD.replace("within: 24h", "within: 25h"),
            GOOD.replace("12-25", "12-26"),
            GOOD.replace("pending_per_agent: 5", "pending_per_agent: 6"),
        )
    }

    assert len(digests) == 5


def test_a_seeded_call_that_nobody_decides_is_refused_by_its_tier() -> None:
    seeded = (
        "seeded_defects: {every: 1h, calls: [{tool: look_up, agent: day, args: {}, "
        "says: s, defect: d}]}\n"
    )

    with pytest.raises(BadPolicy) as found:
        load_policy(GOOD + seeded, "policy.yml")

    assert "is 'look_up', whose tier is 'auto': such a call gets" in str(found.value)
    load_policy(GOOD + seeded.replace("look_up", "refund"), "policy.yml")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("defaults: {reviewers: support}", "write these people as 'needs'."),
        ("tiers: {escalate: {of: support}}", "write these people as 'needs'."),
        ("tiers: {escalate: {approvals: 3}}", "write a requirement, and its name as"),
        ("tiers: {approve: {needs: two}}", "write it under 'defaults', an agent or"),
        (
            "requirements: {two: {of: support, at_least: {support: 1}}}",
            "write 'all', with a part for each role.",
        ),
    ],
)
def test_a_key_of_an_earlier_version_is_refused_with_the_one_that_replaces_it(
    line: str, told: str
) -> None:
    with pytest.raises(BadPolicy) as found:
        load_policy(f"version: 1\n{line}\n", "policy.yml")

    assert "policy.yml:2: Unknown key" in str(found.value)
    assert told in str(found.value)
