"""Give the tests of resuming a stack and a ledger."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from keyturn.gateway.embed import Keyturn
from keyturn.gateway.store.store import Store
from tests.api.remote_program import remote_program
from tests.resume import postgres_server, sample_tools
from tests.resume.programs import Open, in_process
from tests.resume.resume_stack import AT_ONCE, GIVING_UP, RULES, Stack, open_stack


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a separate ledger."""
    path = tmp_path / "ledger.txt"
    monkeypatch.setenv(sample_tools.LEDGER, str(path))
    return path


@pytest.fixture
async def stack(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Open a gateway with the shop's agent, without a worker."""
    async with open_stack(store, tmp_path / "checkpoints.db") as opened:
        yield opened


@pytest.fixture
async def tk(store: Store, tmp_path: Path) -> AsyncGenerator[Keyturn]:
    """Open a program that tries again at once."""
    async with in_process(store, tmp_path, retries=AT_ONCE) as opened:
        yield opened


@pytest.fixture(params=["in process", "http"])
def opened(store: Store, tmp_path: Path, request: pytest.FixtureRequest) -> Open:
    """Open a program that runs its threads in its process, or over HTTP."""

    def one(**options: Any) -> AbstractAsyncContextManager[Keyturn]:
        given: dict[str, Any] = {"policy": RULES, "retries": GIVING_UP, **options}
        if request.param == "http":
            return remote_program(store, folder=tmp_path, **given)
        return in_process(store, tmp_path, **given)

    return one


@pytest.fixture(scope="session")
def postgres() -> Generator[str]:
    """Give the address of a Postgres: a named one, or one that was started for this."""
    named = os.environ.get("KEYTURN_TEST_POSTGRES")
    if named:
        yield named
        return
    try:
        with postgres_server.running() as url:
            yield url
    except postgres_server.NoPostgres as missing:
        pytest.fail(str(missing), pytrace=False)
