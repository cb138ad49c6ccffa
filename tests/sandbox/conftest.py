"""Give every test a fresh sandbox, and a Bolt app on both transports."""

from collections.abc import AsyncIterator

import pytest

from bot.sandbox.server import Sandbox
from tests.sandbox.bolt_app import Mode, RunningApp, new_app, served


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as running:
        yield running


@pytest.fixture(params=["http", "socket"])
def mode(request: pytest.FixtureRequest) -> Mode:
    chosen: Mode = request.param
    return chosen


@pytest.fixture
async def app(sandbox: Sandbox, mode: Mode) -> AsyncIterator[RunningApp]:
    running = new_app(sandbox)
    async with served(running, sandbox, mode):
        yield running


@pytest.fixture
async def http_app(sandbox: Sandbox) -> AsyncIterator[RunningApp]:
    running = new_app(sandbox)
    async with served(running, sandbox, "http"):
        yield running
