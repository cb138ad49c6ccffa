"""What a policy says of a tool is asked once, and of each policy for itself."""

from __future__ import annotations

from collections import Counter

from twokey.gateway.policy.remembered import MOST_POLICIES, MOST_TOOLS, Remembered
from twokey.gateway.policy.rules import Policy


class Asked:
    """Notes how often each question was put."""

    def __init__(self) -> None:
        self.times = Counter[tuple[int, str, str]]()
        self.said = Remembered(self._find)

    def _find(self, policy: Policy, agent: str, tool: str) -> str:
        self.times[id(policy), agent, tool] += 1
        return f"{id(policy)} {agent} {tool}"


def test_the_same_question_is_put_once() -> None:
    asked, policy = Asked(), Policy(version=1)

    said = [asked.said.of(policy, "support", "refund") for _ in range(3)]

    assert said == [f"{id(policy)} support refund"] * 3
    assert asked.times.total() == 1


def test_equal_policies_and_other_names_are_other_questions() -> None:
    asked = Asked()
    policies = [Policy(version=1) for _ in range(3)]
    rows = [(one, a, t) for one in policies for a in "ab" for t in "xy"]

    said = [asked.said.of(*row) for row in [*rows, *rows]]

    assert said == [f"{id(one)} {a} {t}" for one, a, t in [*rows, *rows]]
    assert asked.times.total() == len(rows)


def test_names_that_agents_make_up_do_not_fill_the_memory() -> None:
    asked, policy = Asked(), Policy(version=1)

    for n in range(MOST_TOOLS + 1):
        asked.said.of(policy, "support", f"tool_{n}")
    asked.said.of(policy, "support", "tool_0")

    assert asked.times[id(policy), "support", "tool_0"] == 2


def test_policies_that_were_replaced_are_let_go() -> None:
    asked = Asked()
    # Kept here, so that none of them gets the identity of an earlier one.
    policies = [Policy(version=1) for _ in range(MOST_POLICIES + 1)]

    said = [asked.said.of(one, "support", "refund") for one in policies]
    asked.said.of(policies[0], "support", "refund")

    assert said == [f"{id(one)} support refund" for one in policies]
    assert asked.times[id(policies[0]), "support", "refund"] == 2
