"""Give bot tests a house: sandbox, store, services, and a bot to start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.bot.bot_house import House
from twokey.gateway.config import SlackMode
from twokey.gateway.store.store import Store
from twokey.sandbox.server import Sandbox


@pytest.fixture
async def house(store: Store) -> AsyncIterator[House]:
    async with Sandbox() as sandbox:
        yield House(sandbox, store)


@pytest.fixture(params=["http", "socket"])
async def each_house(
    store: Store, request: pytest.FixtureRequest
) -> AsyncIterator[House]:
    """Give the house over each transport."""
    async with Sandbox() as sandbox:
        yield House(sandbox, store, SlackMode(request.param))
