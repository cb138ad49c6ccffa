"""A policy allows calls of several requests on one card, if that is possible."""

from __future__ import annotations

import re

import pytest

from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.load import BadPolicy, load_policy

HEAD = """
version: 1
defaults: {tier: approve, channel: C0REFUNDS, needs: support, expires_in: 20m}
roles: {support: {users: [U0ANA]}}
tools:
  refund:
"""


def policy_of(rule: str, more: str = "") -> str:
    return f"{HEAD}    batch: {rule}\n{more}"


@pytest.mark.parametrize(
    ("rule", "more", "words"),
    [
        ("{within: 11m}", "", "10 minutes"),
        ("{within: 10s, up_to: 1}", "", "up_to"),
        ("{up_to: 5}", "", "within"),
        ("{within: 6m}", "", "write 300s or less"),
        ("{within: 31s}", "    expires_in: 2m\n", "write 30s or less"),
        ("{within: 10s}", "    tier: escalate\n", "'escalate' at least"),
        ("{within: 10s}", "    requires_reason: [approve]\n", "need a reason each"),
        ("{within: 10s}", "    notify: dm\n", "direct message"),
    ],
)
def test_what_could_never_be_shared_is_refused(
    rule: str, more: str, words: str
) -> None:
    with pytest.raises(BadPolicy, match=re.escape(words)):
        load_policy(policy_of(rule, more), "policy.yml")


def test_a_rule_for_one_agent_is_checked_by_its_own_time() -> None:
    agents = (
        "agents:\n  ops:\n    tools:\n"
        "      refund: {expires_in: 1m, batch: {within: 20s}}\n"
    )

    with pytest.raises(BadPolicy, match=re.escape("write 15s or less")):
        load_policy(policy_of("{within: 10s}", agents), "policy.yml")


def test_a_rule_says_how_long_and_how_many() -> None:
    policy = load_policy(policy_of("{by: task, within: 90s, up_to: 7}"), "policy.yml")

    rule = EffectiveRules(policy, "any", "refund").first.batch

    assert rule is not None
    assert (rule.by, rule.within_s, rule.up_to) == ("task", 90.0, 7)
    assert EffectiveRules(policy, "any", "other").first.batch is None
