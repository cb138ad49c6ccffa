"""A card with large arguments is made in a thread, so clicks are still answered."""

from __future__ import annotations

import pytest

from tests.bot.bot_stack import Stack
from tests.loop_watch import watched


async def test_a_card_is_posted_without_walking_its_arguments_on_the_event_loop(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack.running():
        found = watched(monkeypatch)
        verdict = await stack.refund(order={f"k{n}": n for n in range(4000)})
        await stack.card(verdict)

    assert found == []
