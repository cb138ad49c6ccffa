"""The shipped weekend policy needs the people that it promises for each call."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pydantic import JsonValue

from keyturn.gateway.policy.evaluate import Evaluation, Facts, evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Tier

FILE = Path(__file__).parents[2] / "examples" / "weekend_policy.yml"
POLICY = load_policy(FILE.read_text(encoding="utf-8"), FILE.name)
NOON, BEFORE_NIGHT, NIGHT, MORNING = 12, 1, 2, 8


def evaluation_of(
    tool: str,
    hour: int = NOON,
    *,
    asked: int = 1,
    refunded: float = 0,
    **args: JsonValue,
) -> Evaluation:
    """Evaluate a call at an hour in London; both totals include it."""
    at = datetime(2026, 7, 4, hour, tzinfo=ZoneInfo("Europe/London"))
    totals = {"asked_1h": asked, "refunded_24h": refunded}
    windows = {name: round(total * 10**6) for name, total in totals.items()}
    facts = Facts(now_ms=int(at.timestamp() * 1000), windows=windows)
    return evaluate(POLICY, agent="support", tool=tool, args=args, facts=facts)


@pytest.mark.parametrize(
    ("amount", "refunded", "tier", "approvals", "people"),
    [
        (50, 50, Tier.APPROVE, 1, {"support", "senior"}),
        (50.01, 50.01, Tier.APPROVE, 1, {"senior"}),
        (2, 100, Tier.APPROVE, 1, {"support", "senior"}),
        # Three refunds of 49 on one day.
        (49, 147, Tier.ESCALATE, 2, {"support", "senior"}),
    ],
)
def test_a_refund_needs_more_the_more_it_is(
    amount: float, refunded: float, tier: Tier, approvals: int, people: set[str]
) -> None:
    found = evaluation_of(
        "process_refund", refunded=refunded, customer_id="C1", amount=amount
    )

    assert (found.tier, found.requirement.approvals) == (tier, approvals)
    assert {role.name for role in found.requirement.of} == people


@pytest.mark.parametrize(
    ("hour", "asked", "tier"),
    [
        (NIGHT, 2, Tier.APPROVE),
        (NIGHT, 3, Tier.DENY),
        (BEFORE_NIGHT, 3, Tier.APPROVE),
        (MORNING, 3, Tier.APPROVE),
    ],
)
def test_only_at_night_the_third_request_of_an_hour_is_refused(
    hour: int, asked: int, tier: Tier
) -> None:
    found = evaluation_of(
        "process_refund", hour, asked=asked, customer_id="C1", amount=5
    )

    assert found.tier is tier
    assert ("at night" in str(found.reasons)) is (tier is Tier.DENY)


@pytest.mark.parametrize(
    ("status", "tier"), [("packed", Tier.APPROVE), ("shipped", Tier.ESCALATE)]
)
def test_the_address_of_a_shipped_order_takes_two_people(
    status: str, tier: Tier
) -> None:
    found = evaluation_of(
        "change_address",
        order_id="78291",
        order_status=status,
        address="5 High Street",
    )

    assert found.tier is tier
    assert found.requirement.approvals == (2 if tier is Tier.ESCALATE else 1)


def test_only_reads_run_by_themselves() -> None:
    tiers = {tool: evaluation_of(tool).tier for tool in ("track_package", "unlisted")}

    assert tiers == {"track_package": Tier.AUTO, "unlisted": Tier.APPROVE}
