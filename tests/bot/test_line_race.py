"""A line shows its event's meaning, independent of the event's delay."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.delivery.card_updater import CardUpdater
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import EventName
from tests.approvals.builders import click_on
from tests.bot.bot_stack import Stack, says
from tests.bot.test_notified import ana
from tests.conftest import eventually


async def test_news_that_comes_while_a_card_is_drawn_is_told_by_its_own_record(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record that is read for the card is older than the vote."""
    real, held = CardUpdater._post, list[EventName]()  # pyright: ignore[reportPrivateUsage] - the moment of the race

    async def drawn(self: CardUpdater, entry: Any, *rest: Any) -> Any:
        place = await real(self, entry, *rest)
        if not held:
            approval = await stack.approval(verdict)
            done = await stack.reviews.decide(click_on(approval), Approve(), ana())
            assert done.kind == "voted"

            async def has_come() -> bool:
                names = [event.name for event in entry.events]
                return EventName.ITEM_VOTED in names

            await eventually(has_come)
            held.append(EventName.ITEM_VOTED)
        return place

    monkeypatch.setattr(CardUpdater, "_post", drawn)
    (verdict,) = await stack.submit(("wire_money", {}))
    async with stack.running():
        card = await stack.card(verdict, says("1 of 2"))

        async def is_told() -> bool:
            return bool([n for n in await stack.notes(card) if says("approved")(n)])

        await eventually(is_told)
