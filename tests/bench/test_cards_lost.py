"""No card is lost, however many events follow while no bot runs."""

from __future__ import annotations

import pytest

from bench.cards_lost import measured
from keyturn.bot.delivery import publisher
from keyturn.gateway.store.events import readers
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox


@pytest.mark.slow
async def test_every_card_is_posted_behind_more_events_than_fit_in_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "CAPACITY", 50)
    monkeypatch.setattr(readers, "MANY", 1000)
    async with Sandbox() as sandbox:
        found = await measured(store, sandbox, events=3000, cards=3)

    assert (found.lost, found.cards) == (0, 3)
    assert found.kept >= 3000, "nothing is dropped that the bot has not read"
