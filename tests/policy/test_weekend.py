"""The weekend policy: calls that run, calls that people decide, refused calls."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from pydantic import JsonValue

from keyturn.gateway.policy.evaluate import Evaluation, evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.raise_rules import Facts
from keyturn.gateway.policy.windows import window_uses
from keyturn.gateway.protocol.records import Tier

FILE = Path(__file__).parents[2] / "examples" / "weekend_policy.yml"
POLICY = load_policy(FILE.read_text("utf-8"), str(FILE))
SATURDAY_NOON = "2026-07-04T12:00:00+01:00"


class Weekend:
    """A support agent whose calls add up, as a store would add them."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, str, str, int]] = []

    def call(self, tool: str, at: str, **args: JsonValue) -> Evaluation:
        now_ms = int(datetime.fromisoformat(at).timestamp() * 1000)
        found = window_uses(POLICY, agent="support", tool=tool, args=args)
        totals: dict[str, int] = {}
        for use in found.uses:
            before = sum(
                amount
                for at_ms, window, key, amount in self.kept
                if (window, key) == (use.window, use.key)
                and at_ms > now_ms - use.within_ms
            )
            totals[use.window] = before + use.amount_micro
        evaluation = evaluate(
            POLICY,
            agent="support",
            tool=tool,
            args=args,
            facts=Facts(now_ms=now_ms, windows=totals, problems=found.problems),
        )
        if evaluation.tier is not Tier.DENY:
            rows = [(now_ms, u.window, u.key, u.amount_micro) for u in found.uses]
            self.kept += rows
        return evaluation

    def refund(self, at: str, amount: float, customer: str = "C1") -> Evaluation:
        return self.call("process_refund", at, amount=amount, customer_id=customer)


@pytest.mark.parametrize("tool", ["check_inventory", "track_package"])
def test_inventory_and_packages_are_read_without_anybody(tool: str) -> None:
    evaluation = Weekend().call(tool, SATURDAY_NOON, id="7")

    assert evaluation.tier is Tier.AUTO


def test_every_refund_needs_a_person_however_small() -> None:
    assert Weekend().refund(SATURDAY_NOON, 0.01).tier is Tier.APPROVE


def test_a_refund_over_50_needs_a_senior_and_nobody_else() -> None:
    at_the_limit = Weekend().refund(SATURDAY_NOON, 50)
    above = Weekend().refund(SATURDAY_NOON, 50.01)

    assert at_the_limit.tier is Tier.APPROVE
    assert above.tier is Tier.APPROVE
    assert above.requirement.approvals == 1
    assert [role.name for role in above.requirement.roles] == ["senior"]
    assert above.reasons[-1] == "Needs one_senior: a refund over 50."


@pytest.mark.parametrize(
    ("status", "tier"),
    [
        ("placed", Tier.APPROVE),
        ("packed", Tier.APPROVE),
        ("shipped", Tier.ESCALATE),
        ("on the moon", Tier.ESCALATE),
    ],
)
def test_the_address_of_a_shipped_order_takes_two_people(
    status: str, tier: Tier
) -> None:
    evaluation = Weekend().call(
        "change_address",
        SATURDAY_NOON,
        order_id="1",
        order_status=status,
        address="5 High Street",
    )

    assert evaluation.tier is tier


def test_the_third_request_within_an_hour_at_night_is_refused() -> None:
    weekend = Weekend()

    tiers = [
        weekend.refund(f"2026-07-04T02:{minute}:00+01:00", 5).tier
        for minute in ("05", "20", "35")
    ]

    assert tiers == [Tier.APPROVE, Tier.APPROVE, Tier.DENY]
    assert weekend.refund("2026-07-04T02:40:00+01:00", 5, "C2").tier is Tier.APPROVE
    assert weekend.refund("2026-07-04T03:06:00+01:00", 5).tier is Tier.APPROVE


@pytest.mark.parametrize("hour", ["01", "08", "12", "22"])
def test_by_day_the_third_refund_is_for_people_to_decide(hour: str) -> None:
    weekend = Weekend()

    tiers = [
        weekend.refund(f"2026-07-04T{hour}:{minute}:00+01:00", 5).tier
        for minute in ("05", "20", "35")
    ]

    assert tiers == [Tier.APPROVE] * 3


def test_three_refunds_of_49_are_caught_by_the_sum_of_a_day() -> None:
    weekend = Weekend()

    evaluations = [
        weekend.refund(f"2026-07-04T12:{minute}:00+01:00", 49)
        for minute in ("00", "20", "40")
    ]

    assert [one.tier for one in evaluations] == [
        Tier.APPROVE,
        Tier.APPROVE,
        Tier.ESCALATE,
    ]
    assert evaluations[-1].fired[0].values == (("windows.refunded_24h", "147"),)


def test_the_sum_is_that_of_one_customer_and_of_one_day() -> None:
    weekend = Weekend()
    weekend.refund("2026-07-04T12:00:00+01:00", 49)
    weekend.refund("2026-07-04T13:00:00+01:00", 49)

    assert weekend.refund("2026-07-04T14:00:00+01:00", 49, "C2").tier is Tier.APPROVE
    assert weekend.refund("2026-07-05T12:30:00+01:00", 49).tier is Tier.APPROVE


def test_another_spelling_of_the_customer_hides_nothing() -> None:
    weekend = Weekend()

    tiers = [weekend.refund(SATURDAY_NOON, 49, who).tier for who in ("C1", "c1", " C1")]

    assert tiers[-1] is Tier.ESCALATE


def test_what_a_refund_leaves_out_or_disguises_takes_two_people() -> None:
    bare = Weekend().call("process_refund", SATURDAY_NOON, customer_id="C1")
    text = Weekend().call(
        "process_refund", SATURDAY_NOON, customer_id="C1", amount="49"
    )

    assert bare.tier is text.tier is Tier.ESCALATE
    assert any("args.amount is missing" in reason for reason in bare.reasons)


def test_a_tool_that_nobody_listed_needs_a_person() -> None:
    assert Weekend().call("drop_table", SATURDAY_NOON).tier is Tier.APPROVE
