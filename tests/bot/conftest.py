"""Give bot tests a stack: sandbox, store, services, and a bot to start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from keyturn.gateway.config import SlackMode
from keyturn.gateway.store.store import Store
from keyturn.sandbox.pytest_fixtures import fail_on_problems
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import Stack
from tests.levels import run_each_way
from tests.patience import lift_limits


@pytest.fixture
def transport() -> SlackMode:
    """Return the transport of `stack`; a module may choose another one."""
    return SlackMode.HTTP


@pytest.fixture
async def stack(store: Store, transport: SlackMode) -> AsyncIterator[Stack]:
    """Give the stack; the bot may not do what Slack calls an error."""
    async with Sandbox() as sandbox:
        yield Stack(sandbox, store, transport)
        fail_on_problems(sandbox)


@pytest.fixture
async def live(stack: Stack) -> AsyncIterator[Stack]:
    """Give the stack while its bot runs."""
    async with stack.running():
        yield stack


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `each_stack` over both transports."""
    run_each_way(metafunc, "each_stack", ["http", "socket"])


@pytest.fixture
async def each_stack(
    store: Store, request: pytest.FixtureRequest
) -> AsyncIterator[Stack]:
    """Give the stack over each transport."""
    async with Sandbox() as sandbox:
        yield Stack(sandbox, store, SlackMode(request.param))
        fail_on_problems(sandbox)


@pytest.fixture
async def each_live(each_stack: Stack) -> AsyncIterator[Stack]:
    """Give the stack over each transport while its bot runs."""
    async with each_stack.running():
        yield each_stack


@pytest.fixture(autouse=True)
def without_limits(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lift Slack's rate limits, except in the tests that ask for `slacks_limits`."""
    if "slacks_limits" not in request.fixturenames:
        lift_limits(monkeypatch)


@pytest.fixture
def slacks_limits() -> None:
    """Keep Slack's rate limits, and the bot's."""
