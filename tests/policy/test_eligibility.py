"""Every possible requirement of a call is found, and no other."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from keyturn.gateway.approvals.quorum import asks_more
from keyturn.gateway.policy.eligibility import reachable_requirements
from keyturn.gateway.policy.evaluate import Facts, evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import EVERY_TOOL, Policy
from keyturn.gateway.policy.windows import window_uses
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject

HEAD = """\
version: 1
defaults: {needs: support}
roles:
  support: {users: [U0ANA, U0BEN]}
  senior: {users: [U0LEAD, U0HEAD]}
  boss: {users: [U0BOSS]}
tiers: {escalate: {needs: senior}}
requirements:
  one_senior: {of: senior}
"""
ANY = ("", "", "approve", ["support"])

ROLES = ["support", "senior", "finance"]
RULES = st.fixed_dictionaries(
    {
        "when": st.sampled_from(["args.n > 1", "args.n > 5", "windows.spent > 3"]),
        "because": st.just("so"),
        "needs": st.none() | st.sampled_from(["one_senior", "two", "both"]),
        "to": st.sampled_from(["notify", "approve", "escalate", "deny"]),
    }
).map(
    lambda rule: (
        rule | {"to": "escalate" if rule["needs"] else rule["to"]}
        if rule["to"] != "approve"
        else rule
    )
)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
TOOLS = st.fixed_dictionaries(
    {
        "raise": st.lists(RULES, max_size=3),
        "tier": st.sampled_from(Tier),
        "args_schema": st.none() | st.just(SCHEMA),
        "needs": st.none() | st.sampled_from(["one_senior", "two"]),
    }
)
BASE: JsonObject = {
    "version": 1,
    "defaults": {"needs": "support", "tier": "approve"},
    "roles": {name: {"users": [f"U0{name.upper()}"]} for name in ROLES},
    "requirements": {
        "one_senior": {"of": "senior"},
        "two": {"of": ["support", "finance"], "approvals": 2},
        "both": {"all": [{"of": "senior"}, {"of": "finance"}]},
    },
}
SPENT: JsonObject = {"spent": {"tools": EVERY_TOOL, "sum": "args.n", "within": "1h"}}


def policy_of(
    tools: dict[str, object], night: dict[str, object], *, has_window: bool
) -> Policy:
    agents = {"night": {"tools": night}} if night else {}
    rest = {"tools": tools, "agents": agents, "windows": SPENT if has_window else {}}
    return Policy.model_validate(BASE | rest)


PAY = st.fixed_dictionaries({}, optional={"pay": TOOLS})
POLICIES = st.builds(policy_of, PAY, PAY, has_window=st.booleans())
VALUES = st.integers(-1, 9) | st.just("x") | st.floats()
ARGS = st.fixed_dictionaries(
    {}, optional={"n": cast("st.SearchStrategy[JsonValue]", VALUES)}
)

Row = tuple[str, str, str, list[str]]


def reachable(rest: str) -> list[Row]:
    """Return agent, tool, tier and roles of each requirement but the default one."""
    found = [
        (
            one.agent,
            one.tool,
            one.tier.value,
            [role.name for role in one.requirement.roles],
        )
        for one in reachable_requirements(load_policy(HEAD + rest, "p.yml"))
    ]
    assert ANY in found
    return [one for one in found if one != ANY]


MUCH = "{when: args.n > 5, to: escalate, because: much}"
SOME = "{when: args.n > 1, needs: one_senior, because: some}"


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        ("tools: {look_up: {tier: auto}, wipe: {tier: deny}}", []),
        (
            f"tools: {{pay: {{tier: auto, raise: [{MUCH}, {SOME}]}}}}",
            [
                ("", "pay", "escalate", ["senior"]),
                ("", "pay", "approve", ["support", "senior"]),
            ],
        ),
        (
            "tools: {mail: {tier: approve, triage: {tiers: [approve]}}}",
            [
                ("", "mail", "approve", ["support"]),
                ("", "mail", "escalate", ["senior"]),
            ],
        ),
        ("tools: {wipe: {tier: deny}}\nprotect: {ask_about_invalid_calls: true}", []),
        (
            "tools: {look: {tier: auto}}\nprotect: {ask_about_invalid_calls: true}",
            [("", "look", "approve", ["support"])],
        ),
    ],
)
def test_exactly_what_a_call_may_need_is_found(rest: str, found: list[Row]) -> None:
    assert reachable(rest) == found


def test_what_holds_for_one_agent_is_found_under_its_name() -> None:
    found = reachable("agents: {night: {tools: {mail: {tier: escalate}}}}")

    assert ("night", "mail", "escalate", ["senior"]) in found
    assert ("night", "", "approve", ["support"]) in found


def test_rules_that_hold_together_are_found_together() -> None:
    boss = "{when: args.n > 5, needs: one_boss, because: much}"

    found = reachable(
        "  one_boss: {of: boss}\n"
        f"tools: {{pay: {{tier: auto, raise: [{boss}, {SOME}]}}}}"
    )

    assert ("", "pay", "approve", ["support", "boss", "senior"]) in found
    assert ("", "pay", "escalate", ["senior", "boss"]) in found


@given(POLICIES, st.sampled_from(["", "night"]), ARGS)
def test_no_call_asks_for_more(policy: Policy, agent: str, args: JsonObject) -> None:
    uses = window_uses(policy, agent=agent, tool="pay", args=args)
    known = Facts(
        now_ms=0,
        windows={use.window: use.amount_micro for use in uses.uses},
        problems=uses.problems,
    )

    listed = policy.agents[agent].tools if agent in policy.agents else {}
    place = (
        agent if agent in policy.agents else "",
        "pay" if "pay" in policy.tools or "pay" in listed else "",
    )
    covers = [
        one for one in reachable_requirements(policy) if (one.agent, one.tool) == place
    ]
    for facts in (None, known):
        asked = evaluate(policy, agent=agent, tool="pay", args=args, facts=facts)
        assert not asked.tier.needs_people or any(
            one.tier is asked.tier and not asks_more(asked.requirement, one.requirement)
            for one in covers
        )
