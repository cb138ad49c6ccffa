"""The shipped weekend policy, played by an agent and people.

Every call is made by a running agent, kept in a real store and decided by signed
clicks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.stories.weekend import ANA, BEN, CHANNEL, LEAD, open_weekend

NOON, NIGHT, EVENING = 12, 4, 22


@pytest.mark.slow
async def test_above_50_a_senior_alone_is_enough(tmp_path: Path) -> None:
    async with open_weekend(tmp_path, NOON) as weekend:
        small = await weekend.card("process_refund", customer_id="C1", amount=50)
        await weekend.approve(small, ANA, until=", done ")
        large = await weekend.card("process_refund", customer_id="C2", amount=50.01)
        assert "a refund over 50" in str(large["blocks"])
        await weekend.demo.sandbox.person(ANA).click(
            CHANNEL, str(large["ts"]), Action.APPROVE
        )
        await weekend.told(ANA, "Only senior can decide")
        assert (await weekend.item(large)).state is ItemState.PENDING
        await weekend.approve(large, LEAD, until=", done ")

        assert (await weekend.item(small)).tier is Tier.APPROVE
        voters = [vote.by.user for vote in (await weekend.item(large)).votes]
        assert voters == [LEAD]


@pytest.mark.slow
async def test_an_address_change_takes_two_people(tmp_path: Path) -> None:
    async with open_weekend(tmp_path, NOON) as weekend:
        order = {"order_id": "78291", "address": "5 High Street"}
        packed = await weekend.card("change_address", **order, order_status="packed")
        await weekend.approve(packed, BEN, until=", done ")
        shipped = await weekend.card("change_address", **order, order_status="shipped")
        assert "on its way already" in str(shipped["blocks"])
        await weekend.approve(shipped, BEN, until="1 of 2 approvals")
        await weekend.approve(shipped, LEAD, until=", done ")

        assert (await weekend.item(packed)).tier is Tier.APPROVE
        assert (await weekend.item(shipped)).tier is Tier.ESCALATE


@pytest.mark.slow
async def test_at_night_the_third_request_is_refused(tmp_path: Path) -> None:
    async with open_weekend(tmp_path, NIGHT) as weekend:
        first = await weekend.card("process_refund", customer_id="C1", amount=5)
        await weekend.reject(first, ANA)
        second = await weekend.card("process_refund", customer_id=" c1", amount=6)
        await weekend.reject(second, BEN)
        # Both were refused, and the third request is one too many all the same.
        told = await weekend.words("process_refund", customer_id="C1", amount=7)
        assert "the third request of a customer within an hour, at night" in told
        assert "refunded 7 to C1" not in told
        assert await weekend.cards() == 2

        # It is about this customer and this hour.
        await weekend.card("process_refund", customer_id="C2", amount=5)
        again = await weekend.words("process_refund", customer_id="C1", amount=8)
        assert "at night" in again
        await weekend.later(minutes=61)
        late = await weekend.card("process_refund", customer_id="C1", amount=9)

        assert (await weekend.item(late)).tier is Tier.APPROVE


@pytest.mark.slow
async def test_a_days_sum_catches_three_refunds_of_49(tmp_path: Path) -> None:
    async with open_weekend(tmp_path, EVENING) as weekend:
        first = await weekend.card("process_refund", customer_id="C1", amount=49)
        await weekend.approve(first, ANA, until=", done ")
        second = await weekend.card("process_refund", customer_id=" c1", amount=49)
        third = await weekend.card("process_refund", customer_id="C\u200b1", amount=49)
        assert "more than 100 refunded to this customer" in str(third["blocks"])
        await weekend.approve(third, ANA, until="1 of 2 approvals")
        await weekend.approve(third, LEAD, until=", done ")

        tiers = [(await weekend.item(card)).tier for card in (first, second, third)]
        assert tiers == [Tier.APPROVE, Tier.APPROVE, Tier.ESCALATE]
