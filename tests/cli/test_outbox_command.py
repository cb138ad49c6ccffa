"""'keyturn outbox' lists the readers, and drops one that is gone for good."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator
from datetime import timedelta
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from keyturn.cli import outbox
from keyturn.cli.command_context import CommandContext
from keyturn.cli.main import add
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.events import readers
from keyturn.gateway.store.store import Store
from tests.store_secrets import ENV, SECRETS

AWAY, HERE = "slack:away", "slack:default"


class Shell:
    """A shell on a machine that reaches the store."""

    def __init__(self, url: str, config: Path) -> None:
        self._url, self._config = url, config
        self._app = typer.Typer()
        add(self._app, "outbox", outbox)
        self._app.command()(_other)

    def __call__(self, *words: str) -> str:
        """Run ``keyturn outbox ...``; return its output."""
        session = CommandContext(
            env={**ENV, "KEYTURN_REDIS_URL": self._url}, config=self._config
        )
        done = CliRunner().invoke(
            self._app, ["outbox", *words], obj=session, catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        return done.output

    def do(self, work: Callable[[Store], Awaitable[object]]) -> None:
        """Do something in the store, as a bot would."""

        async def done() -> None:
            store = Store(self._url, secrets=SECRETS)
            await work(store)
            await store.close()

        asyncio.run(done())


def _other() -> None:
    """Be a second command, so that the first one needs its name."""


@pytest.fixture
def shell(tmp_path: Path) -> Generator[Shell]:
    config = tmp_path / "keyturn.yml"
    config.write_text("policy: {version: 1}\n")
    with EmbeddedEngine(tmp_path / "engine") as engine:
        yield Shell(engine.url, config)


async def two_readers(store: Store) -> None:
    """One reader is away, and one read everything a moment ago."""
    keys = store.keys_of_tenant("default")
    away, here = (store.outbox(keys, reader=name) for name in (AWAY, HERE))
    for one in (away, here):
        await one.prepare()
    for _ in range(3):
        await away.put(Event(name=EventName.RUN_FINISHED, tenant="default"))
    await here.done(*(event.seq for event in await here.take("c", block_ms=1)))


def test_readers_are_listed_with_what_they_have_not_read(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.do(two_readers)

    rows = json.loads(shell("list", "--json"))
    told = shell("list")

    assert [(row["reader"], row["unread"]) for row in rows] == [(AWAY, 3), (HERE, 0)]
    assert rows[0]["idle_ms"] is None
    assert "has 3 events" in told
    assert f"{AWAY}: 3 not acknowledged, never read" in told
    assert "keyturn outbox drop" not in told

    monkeypatch.setattr(readers, "MANY", 2)
    # As if these events were older than the retention for idle readers.
    monkeypatch.setattr(readers, "_KEPT", timedelta(minutes=-1))
    assert "'keyturn outbox drop' if it is gone for good" in shell("list")


def test_a_reader_that_is_gone_is_dropped_and_one_in_use_is_not(shell: Shell) -> None:
    shell.do(two_readers)

    assert f"{AWAY} is dropped" in shell("drop", AWAY)
    with pytest.raises(SettingsError, match="stop it first"):
        shell("drop", HERE)
    with pytest.raises(SettingsError, match=f"There is no reader '{AWAY}'"):
        shell("drop", AWAY)

    assert [row["reader"] for row in json.loads(shell("list", "--json"))] == [HERE]
