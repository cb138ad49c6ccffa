"""User groups that may matter for a call, worked out once for a tool."""

from __future__ import annotations

import pytest

from tests.approvals.builders import ONE, an_item
from twokey.gateway.approvals.requirement import Role
from twokey.gateway.policy.effective_rules import EffectiveRules
from twokey.gateway.policy.load import load_policy
from twokey.gateway.service import asked_groups
from twokey.gateway.service.asked_groups import AskedGroups

POLICY = """
version: 1
defaults: {{tier: approve, expires_in: 1h, channel: C0APPROVALS, reviewers: support}}
roles: {{support: {{usergroups: [{group}]}}}}
tools: {{process_refund: {{tier: approve}}}}
"""
OLD, NEW = (
    load_policy(POLICY.format(group=group), "policy.yml")
    for group in ("S0OLD", "S0NEW")
)


def test_groups_are_those_of_the_pinned_requirement_and_of_the_policy() -> None:
    pinned = ONE.with_(of=(Role(name="leads", usergroups=("S0LEADS",)),))

    assert AskedGroups().of(OLD, an_item(requirement=pinned)) == {"S0LEADS", "S0OLD"}


def test_what_one_item_pins_is_not_asked_about_another_of_the_tool() -> None:
    pinned = ONE.with_(of=(Role(name="leads", usergroups=("S0LEADS",)),))
    groups = AskedGroups()
    groups.of(OLD, an_item(requirement=pinned))

    assert groups.of(OLD, an_item()) == {"S0OLD"}


def test_another_policy_is_asked_anew() -> None:
    groups = AskedGroups()

    assert [groups.of(policy, an_item()) for policy in (OLD, NEW, OLD)] == [
        {"S0OLD"},
        {"S0NEW"},
        {"S0OLD"},
    ]


def test_tools_of_any_name_fill_no_memory() -> None:
    groups = AskedGroups()

    for number in range(3 * asked_groups.MOST_REMEMBERED):
        groups.of(OLD, an_item().with_(tool=f"made_up_{number}"))

    assert groups.remembered <= asked_groups.MOST_REMEMBERED


def test_what_one_thread_works_out_is_not_another_policys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups, plain = AskedGroups(), EffectiveRules.everybody

    def interrupted(rules: EffectiveRules) -> object:
        monkeypatch.undo()
        groups.of(NEW, an_item().with_(tool="another"))
        return plain(rules)

    monkeypatch.setattr(EffectiveRules, "everybody", interrupted)

    assert groups.of(OLD, an_item()) == {"S0OLD"}
    assert groups.of(NEW, an_item()) == {"S0NEW"}
