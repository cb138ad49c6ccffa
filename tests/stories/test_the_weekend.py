"""The weekend policy as it is shipped, lived through by an agent and by people.

What it says of single calls is in tests/policy/test_weekend.py; here every call is
made by a running agent, kept in a real store and decided by signed clicks.
"""

from __future__ import annotations

from pathlib import Path

from gateway.approvals.lifecycle import ItemState
from gateway.approvals.tiers import Tier
from tests.stories.weekend import ANA, BEN, LEAD, open_weekend

NOON, NIGHT, EVENING = 12, 4, 22


async def test_inventory_and_packages_are_read_and_nobody_is_asked(
    tmp_path: Path,
) -> None:
    async with open_weekend(tmp_path, NOON) as weekend:
        left = await weekend.words("check_inventory", item="desk lamp")
        where = await weekend.words("track_package", order_id="78291")

        assert "3 of desk lamp are left" in left
        assert "78291 is in Leeds" in where
        assert await weekend.cards() == 0


async def test_a_refund_needs_a_person_and_over_50_two_and_a_senior(
    tmp_path: Path,
) -> None:
    async with open_weekend(tmp_path, NOON) as weekend:
        small = await weekend.card("process_refund", customer_id="C1", amount=50)
        await weekend.approve(small, ANA, until="and done")
        large = await weekend.card("process_refund", customer_id="C2", amount=50.01)
        assert "a refund over 50" in str(large["blocks"])
        await weekend.approve(large, ANA, until="1 of 2 approvals")
        # Two of support are two people, but none of them is a senior.
        card = await weekend.approve(large, BEN, until="Needs 1 from senior")
        assert (await weekend.item(card)).state is ItemState.PENDING
        await weekend.approve(large, LEAD, until="and done")

        assert (await weekend.item(small)).tier is Tier.APPROVE
        assert (await weekend.item(large)).tier is Tier.ESCALATE
        voters = [vote.by.user for vote in (await weekend.item(large)).votes]
        assert {ANA, LEAD} <= {*voters}


async def test_the_address_of_a_shipped_order_takes_two_people(tmp_path: Path) -> None:
    async with open_weekend(tmp_path, NOON) as weekend:
        order = {"order_id": "78291", "address": "5 High Street"}
        packed = await weekend.card("change_address", **order, order_status="packed")
        await weekend.approve(packed, BEN, until="and done")
        shipped = await weekend.card("change_address", **order, order_status="shipped")
        assert "on its way already" in str(shipped["blocks"])
        await weekend.approve(shipped, BEN, until="1 of 2 approvals")
        await weekend.approve(shipped, LEAD, until="and done")

        assert (await weekend.item(packed)).tier is Tier.APPROVE
        assert (await weekend.item(shipped)).tier is Tier.ESCALATE


async def test_at_night_the_third_refund_within_an_hour_is_refused(
    tmp_path: Path,
) -> None:
    async with open_weekend(tmp_path, NIGHT) as weekend:
        first = await weekend.card("process_refund", customer_id="C1", amount=5)
        await weekend.approve(first, ANA, until="and done")
        # A call that still waits counts as well.
        waiting = await weekend.card("process_refund", customer_id="C1", amount=5)
        told = await weekend.words("process_refund", customer_id="C1", amount=5)
        assert "the third refund of a customer within an hour, at night" in told
        assert "refunded 5 to C1" not in told
        assert await weekend.cards() == 2

        # It is about this customer and this hour, and only about what may still run.
        await weekend.card("process_refund", customer_id="C2", amount=5)
        await weekend.reject(waiting, ANA)
        third = await weekend.card("process_refund", customer_id="C1", amount=5)
        await weekend.approve(third, ANA, until="and done")
        again = await weekend.words("process_refund", customer_id="C1", amount=5)
        assert "at night" in again
        await weekend.later(minutes=61)
        late = await weekend.card("process_refund", customer_id="C1", amount=5)

        assert (await weekend.item(late)).tier is Tier.APPROVE


async def test_three_refunds_of_49_are_caught_by_the_sum_of_a_day(
    tmp_path: Path,
) -> None:
    async with open_weekend(tmp_path, EVENING) as weekend:
        first = await weekend.card("process_refund", customer_id="C1", amount=49)
        await weekend.approve(first, ANA, until="and done")
        second = await weekend.card("process_refund", customer_id=" c1", amount=49)
        third = await weekend.card("process_refund", customer_id="C1", amount=49)
        assert "more than 100 refunded to this customer" in str(third["blocks"])
        await weekend.approve(third, ANA, until="1 of 2 approvals")
        await weekend.approve(third, LEAD, until="and done")

        tiers = [(await weekend.item(card)).tier for card in (first, second, third)]
        assert tiers == [Tier.APPROVE, Tier.APPROVE, Tier.ESCALATE]
