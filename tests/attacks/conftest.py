"""Give an attacker a whole house: sandbox, real store, real bot, real services."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.bot.bot_house import House
from twokey.bot import limits
from twokey.bot.limits import POST, UPDATE, Rate
from twokey.gateway.config import SlackMode
from twokey.gateway.store.store import Store
from twokey.sandbox.server import Sandbox


@pytest.fixture
async def house(store: Store) -> AsyncIterator[House]:
    """Give a house whose bot listens by HTTP."""
    async with Sandbox() as sandbox:
        yield House(sandbox, store)


@pytest.fixture(params=["http", "socket"])
async def each_house(
    store: Store, request: pytest.FixtureRequest
) -> AsyncIterator[House]:
    """Give the house over each transport."""
    async with Sandbox() as sandbox:
        yield House(sandbox, store, SlackMode(request.param))


@pytest.fixture
def unlimited(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Slack and the bot speak as fast as they can."""
    house.sandbox.rates.enabled = False
    for method in (POST, UPDATE):
        monkeypatch.setitem(limits.RATES, method, Rate(1_000_000, 1_000))
