"""A policy names the people that cards mention; that changes no decider."""

from __future__ import annotations

from itertools import product

import pytest

from keyturn.gateway.approvals.quorum import stricter
from keyturn.gateway.approvals.requirement import Notify, Requirement, Role
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.load import BadPolicy, load_policy
from keyturn.gateway.protocol.records import Tier

POLICY = """\
version: 1
defaults: {needs: support}
roles:
  support: {usergroups: [S0SUPPORT]}
  senior: {users: [U0LEAD, U0HEAD], notify: none}
requirements:
  with_senior: {all: [{of: [support, senior]}, {of: senior}]}
tiers:
  approve: {notify: none, escalate_at: 80%, escalate_to: "#leads"}
  escalate: {needs: with_senior}
tools: {refund: {tier: approve}}
"""


def requirement_at(tier: Tier, text: str = POLICY) -> Requirement:
    policy = load_policy(text, "policy.yml")
    return EffectiveRules(policy, "support", "refund").requirement(tier)


def told(requirement: Requirement) -> dict[str, Notify]:
    return {role.name: role.notify for role in requirement.roles}


def test_a_role_is_mentioned_unless_it_or_its_tier_says_otherwise() -> None:
    assert told(requirement_at(Tier.APPROVE)) == {"support": Notify.NONE}
    assert told(requirement_at(Tier.ESCALATE)) == {
        "support": Notify.MENTION,
        "senior": Notify.NONE,
    }


def test_a_tier_silences_every_part_of_a_requirement() -> None:
    needs = POLICY.replace(
        "tools: {refund: {tier: approve}}",
        "tools: {refund: {tier: approve, needs: both}}",
    ).replace(
        ", notify: none}\nrequirements:\n",
        "}\nrequirements:\n  both: {all: [{of: support}, {of: senior}]}\n",
    )

    assert set(told(requirement_at(Tier.APPROVE, needs)).values()) == {Notify.NONE}
    assert set(told(requirement_at(Tier.ESCALATE, needs)).values()) == {Notify.MENTION}


@pytest.mark.parametrize("pair", [*product(Notify, repeat=2)])
def test_of_two_demands_the_one_that_reaches_people_best_wins(
    pair: tuple[Notify, Notify],
) -> None:
    first, second = (
        Requirement(
            approvals=1, of=(Role(name="support", users=("U0ANA",), notify=one),)
        )
        for one in pair
    )

    both = stricter(first, second.with_(approvals=2))

    (role,) = both.roles
    assert role.notify is Notify.strongest(*pair)
    assert [*Notify].index(role.notify) == max(map([*Notify].index, pair))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("notify: none}\nreq", "notify: loud}\nreq", "notify"),
        (
            "approve: {notify: none,",
            "approve: {notify: none, remind_at: 50%,",
            "'remind_at' mentions reviewers, which 'notify: none' turns off",
        ),
        ('escalate_to: "#leads"', "escalate_to: senior", "'tiers.approve.escalate_to'"),
    ],
    ids=["unknown", "reminded", "called"],
)
def test_what_contradicts_it_is_refused_with_what_to_do(
    old: str, new: str, said: str
) -> None:
    assert old in POLICY

    with pytest.raises(BadPolicy) as found:
        load_policy(POLICY.replace(old, new), "policy.yml")

    assert said in str(found.value)


def test_the_policy_knows_every_way_of_notifying_that_it_names() -> None:
    policy = load_policy(POLICY.replace("approve}}", "approve, notify: dm}}"), "p.yml")

    assert policy.notifying == {*Notify} - {Notify.MENTION}


def test_who_is_called_later_for_a_tool_is_notified_as_the_tool_says() -> None:
    text = (
        POLICY.replace("approve}}", "approve, notify: dm}}")
        .replace(
            "needs: with_senior}",
            "needs: with_senior, escalate_at: 80%, escalate_to: senior}",
        )
        .replace("[U0LEAD, U0HEAD], notify: none", "[U0LEAD, U0HEAD]")
    )
    rules = EffectiveRules(load_policy(text, "p.yml"), "support", "refund")

    _, roles = rules.escalation(Tier.ESCALATE, rules.requirement(Tier.ESCALATE))

    assert [(role.name, role.notify) for role in roles] == [("senior", Notify.DM)]
