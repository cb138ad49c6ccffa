"""A policy bounds standing approvals and batches; useless bounds are refused."""

from __future__ import annotations

import re

import pytest
from pydantic import JsonValue

from keyturn.gateway.approvals.similar import Bounds, exact_micro, micro_text
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.load import BadPolicy, load_policy
from keyturn.gateway.policy.standing import (
    HIDDEN,
    evaluate_standing,
    repeats_are_meant,
)
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import MAX_INTEGER

HEAD = """
version: 1
defaults: {tier: approve, channel: C0REFUNDS, needs: support, expires_in: 20m}
roles: {support: {users: [U0ANA]}}
tools:
  refund:
"""
GOOD = (
    "{within: 8h, uses: 20, sum: args.amount, at_most: 500, may_differ: [args.order]}"
)


def policy_of(rule: str, more: str = "", key: str = "allow_similar") -> str:
    return f"{HEAD}    {key}: {rule}\n{more}"


@pytest.mark.parametrize(
    ("rule", "more", "words"),
    [
        ("{within: 11m}", "", "10m is the most"),
        ("{within: 10s, up_to: 1}", "", "up_to"),
        ("{up_to: 5}", "", "within"),
        ("{within: 6m}", "", "write 300s or less"),
        ("{within: 31s}", "    expires_in: 2m\n", "write 30s or less"),
        (
            "{within: 10s}",
            "agents: {a: {tools: {refund: {expires_in: 1m, batch: {within: 20s}}}}}\n",
            "write 15s or less",
        ),
    ],
)
def test_an_impossible_rule_is_refused(rule: str, more: str, words: str) -> None:
    with pytest.raises(BadPolicy, match=re.escape(words)):
        load_policy(policy_of(rule, more, "batch"), "policy.yml")


def test_a_rule_says_how_long_and_how_many() -> None:
    rule = "{by: task, within: 90s, up_to: 7}"
    policy = load_policy(policy_of(rule, key="batch"), "policy.yml")

    found = EffectiveRules(policy, "any", "refund").first.batch

    assert found is not None
    assert (found.by, found.within_s, found.up_to) == ("task", 90.0, 7)
    assert EffectiveRules(policy, "any", "other").first.batch is None


@pytest.mark.parametrize(
    ("rule", "more", "words"),
    [
        ("{within: 8d, uses: 1}", "", "7d is the most"),
        ("{within: 8h, uses: 0}", "", "uses"),
        ("{within: 8h, uses: 1, sum: args.a}", "", "belong together"),
        ("{within: 8h, uses: 1, sum: args.a, at_most: 0.0000001}", "", "above 0"),
        (
            "{within: 8h, uses: 1, sum: args.a.b, at_most: 5, may_differ: args.a}",
            "",
            "differ by another path",
        ),
        (
            "{within: 8h, uses: 1, may_differ: args.odrer}",
            "    args_schema: {type: object, properties: {order: {type: string}}}\n",
            "odrer",
        ),
        (
            "{within: 8h, uses: 1, sum: args.order, at_most: 5}",
            "    args_schema: {type: object, properties: {order: {type: boolean}}}\n",
            "order",
        ),
    ],
)
def test_what_could_not_be_used_is_refused(rule: str, more: str, words: str) -> None:
    with pytest.raises(BadPolicy, match=re.escape(words)):
        load_policy(policy_of(rule, more), "policy.yml")


def bounds(**changes: object) -> Bounds:
    given = Bounds(
        agent="support",
        tool="refund",
        equal={},
        may_differ=("args.order",),
        amount="args.amount",
        each_micro=50_000_000,
        total_micro=500_000_000,
        uses=20,
        until_ms=8 * 3600 * 1000,
        source="ap_1.0",
    )
    return given.with_(**changes)


@pytest.mark.parametrize(
    ("changes", "tier"),
    [
        ({}, Tier.APPROVE),
        ({"until_ms": 8 * 3600 * 1000 + 1}, Tier.DENY),
        ({"uses": 21}, Tier.DENY),
        ({"total_micro": 500_000_001}, Tier.DENY),
        ({"each_micro": 500_000_001}, Tier.DENY),
        ({"may_differ": ("args.order", "args.to")}, Tier.DENY),
        ({"amount": "args.other"}, Tier.DENY),
        ({"tool": "other"}, Tier.DENY),
    ],
)
def test_nobody_exceeds_the_policy(changes: dict[str, object], tier: Tier) -> None:
    policy = load_policy(policy_of(GOOD), "policy.yml")

    found = evaluate_standing(
        policy, bounds(**changes), opened_by=policy.digest, opened_ms=0
    )

    assert found.tier is tier


def test_a_hidden_argument_may_be_free_and_never_has_to_be_equal() -> None:
    free = GOOD.replace("[args.order]", "[args.order, args.card]")
    more = "    redact: [args.card.number]\n"

    tiers: list[Tier] = []
    for rule, names in ((free, ("args.order", "args.card")), (GOOD, ("args.order",))):
        policy = load_policy(policy_of(rule, more), "policy.yml")
        given = bounds(may_differ=names)
        found = evaluate_standing(policy, given, opened_by=policy.digest, opened_ms=0)
        tiers.append(found.tier)

    assert tiers == [Tier.APPROVE, Tier.DENY]
    assert found.reasons == (HIDDEN,)


def test_a_proposal_of_another_policy_is_denied() -> None:
    policy = load_policy(policy_of(GOOD), "policy.yml")

    found = evaluate_standing(policy, bounds(), opened_by="sha256:0", opened_ms=0)

    assert found.tier is Tier.DENY


@pytest.mark.parametrize(
    ("same_by", "are_meant"),
    [("", False), ("args.customer", True), ("args.order", False)],
)
def test_a_repetition_needs_equal_calls(same_by: str, *, are_meant: bool) -> None:
    more = f"    same_by: {same_by}\n" if same_by else ""
    policy = load_policy(policy_of(GOOD, more), "policy.yml")

    assert repeats_are_meant(policy, bounds()) is are_meant


@pytest.mark.parametrize(
    ("value", "micro"),
    [
        (0.1, 100_000),
        ("10.50", 10_500_000),
        ("3\n", None),
        (1e3, 1_000_000_000),
        (0.0000001, None),
        ("50.0000004", None),
        (-1, None),
        ("1e3", None),
        ("٣", None),
        ("", None),
        ("NaN", None),
        (True, None),
        ([1], None),
        (MAX_INTEGER, None),
        (1e300, None),
    ],
)
def test_an_amount_is_exact_or_unread(value: JsonValue, micro: int | None) -> None:
    assert exact_micro(value) == micro


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "0"), (500_000_000, "500"), (12_500_000, "12.50"), (1, "0.000001")],
)
def test_an_amount_is_written_as_people_write_it(micro: int, text: str) -> None:
    assert micro_text(micro) == text
