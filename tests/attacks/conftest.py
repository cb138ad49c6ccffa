"""Give an attacker a whole stack: sandbox, real store, real bot, real services."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from keyturn.bot import limits
from keyturn.bot.limits import POST, UPDATE, Rate
from keyturn.gateway.config import SlackMode
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import Stack


@pytest.fixture
async def stack(store: Store) -> AsyncIterator[Stack]:
    """Give a stack whose bot listens by HTTP."""
    async with Sandbox() as sandbox:
        yield Stack(sandbox, store)


@pytest.fixture(params=["http", "socket"])
async def each_stack(
    store: Store, request: pytest.FixtureRequest
) -> AsyncIterator[Stack]:
    """Give the stack over each transport."""
    async with Sandbox() as sandbox:
        yield Stack(sandbox, store, SlackMode(request.param))


@pytest.fixture
def unlimited(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the rate limits of Slack and the bot."""
    stack.sandbox.rates.enabled = False
    for method in (POST, UPDATE):
        monkeypatch.setitem(limits.RATES, method, Rate(1_000_000, 1_000))
