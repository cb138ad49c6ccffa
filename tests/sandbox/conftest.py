"""Give every test a fresh sandbox, and a Bolt app on both transports."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from keyturn.sandbox import delivery, triggers
from keyturn.sandbox.client import Person
from keyturn.sandbox.server import Sandbox
from tests.sandbox.bolt_app import Mode, RunningApp, new_app, new_client, served


@pytest.fixture(autouse=True)
def slack_waits_three_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as long as Slack; these tests move the clock."""
    monkeypatch.setattr(delivery, "ACK_WITHIN_S", 3.0)
    monkeypatch.setattr(triggers, "LIFE_S", 3.0)


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as running:
        yield running


@pytest.fixture
def client(sandbox: Sandbox) -> Any:
    return new_client(sandbox)


@pytest.fixture
def ana(sandbox: Sandbox) -> Person:
    return sandbox.person("U0ANA")


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


@pytest.fixture
async def socket_app(sandbox: Sandbox) -> AsyncIterator[RunningApp]:
    running = new_app(sandbox)
    async with served(running, sandbox, "socket"):
        yield running
