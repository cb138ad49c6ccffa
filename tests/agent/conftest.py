"""What the tests of the agent's side share: both ways to run, both kinds of saver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from keyturn.gateway.client import bridge, claiming
from tests.agent.agent_runner import Effects, Killed, Runner
from tests.levels import run_each_way


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "FIRST_PAUSE_S", 0.001)


@pytest.fixture(autouse=True)
def killed_is_an_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    exits = (SystemExit, GeneratorExit, asyncio.CancelledError, Killed)
    monkeypatch.setattr("keyturn.gateway.failures._EXITS", exits)


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send heartbeats all the time under a lease that survives a busy machine."""
    monkeypatch.setattr(claiming, "BEATS", 1_500)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run agents in both ways, and with both kinds of saver."""
    run_each_way(metafunc, "runner", ["sync", "async"])
    run_each_way(metafunc, "saver", ["memory", "sqlite"], only_deep=True)


@pytest.fixture
def runner(request: pytest.FixtureRequest) -> Runner:
    return Runner(is_async=request.param == "async")


@pytest.fixture
def effects() -> Effects:
    return Effects()


@pytest.fixture
def memory() -> InMemorySaver:
    return InMemorySaver()


@pytest.fixture
async def sqlite(runner: Runner, tmp_path: Path) -> AsyncIterator[Any]:
    path = str(tmp_path / "checkpoints.sqlite")
    if runner.is_async:
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            yield saver
    else:
        with SqliteSaver.from_conn_string(path) as saver:
            yield saver


@pytest.fixture
def saver(request: pytest.FixtureRequest, memory: InMemorySaver, sqlite: Any) -> Any:
    return memory if request.param == "memory" else sqlite
