"""A sandbox has all people and channels of a policy."""

from __future__ import annotations

from pathlib import Path

from keyturn.cli.demo_stack import holders, seed
from keyturn.gateway.policy.load import load_policy
from keyturn.sandbox.samples import sample_workspace

EXAMPLE = Path(__file__).parents[2] / "policy.example.yml"
ROLES = """\
version: 1
defaults: {needs: [first, S0DIRECT], channel: "#new-place"}
roles:
  first: {usergroups: [S0FIRST]}
  second: {usergroups: [S0SECOND, S0SENIOR], users: [U0ANA, U0NEWCOMER]}
tools: {wire: {channel: C0ELSEWHERE}, mail: {channel: "#general"}}
"""


def test_every_role_of_the_example_is_held_by_somebody() -> None:
    policy, workspace = load_policy(EXAMPLE.read_text("utf-8"), "p"), sample_workspace()

    seed(workspace, policy)

    lines = holders(policy, workspace)
    assert lines == ["support: Ana Alves, Ben Boer", "senior: Lead, Head"]


def test_the_first_role_and_later_ones_are_different_people() -> None:
    policy, workspace = load_policy(ROLES, "p"), sample_workspace()

    seed(workspace, policy)

    assert holders(policy, workspace) == [
        "first: Ana Alves, Ben Boer",
        "second: Ana Alves, Newcomer, Chloé Chen",
    ]
    assert workspace.groups["S0DIRECT"].users == ("U0ANA", "U0BEN")
    assert workspace.groups["S0SENIOR"].users == ("U0CHLOE",)
    assert workspace.users["U0NEWCOMER"].is_full_member
    handles = {one.id: one.handle for one in workspace.groups.values()}
    assert (handles["S0FIRST"], handles["S0SECOND"]) == ("first", "s0second")


def test_channels_are_added_once_and_the_bot_is_in_them() -> None:
    policy, workspace = load_policy(ROLES, "p"), sample_workspace()

    seed(workspace, policy)
    seed(workspace, policy)

    names = [each.name for each in workspace.channels.values() if not each.is_im]
    assert sorted(names) == [
        "agent-approvals", "c0elsewhere", "finance", "general", "new-place",
    ]  # fmt: skip
    new = [each for each in workspace.channels.values() if each.name == "new-place"]
    assert workspace.app.bot_user in new[0].members
    assert workspace.channels["C0ELSEWHERE"].members == new[0].members
    assert "U0NEWCOMER" in new[0].members
