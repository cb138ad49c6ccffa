"""'keyturn jobs' lists failed runs, retries them, or drops them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from keyturn.cli import jobs
from keyturn.cli.command_context import CommandContext
from keyturn.cli.main import add
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.resume.store_threads import ThreadRef
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.runs.jobs import Job, JobKind
from keyturn.gateway.store.store import Store
from tests.bot.strategies import CANARY
from tests.store_secrets import ENV, SECRETS
from tests.streams import announced

RESUME = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")


class Shell:
    """A shell on a machine that reaches the store."""

    def __init__(self, url: str, config: Path) -> None:
        self._url = url
        self._config = config
        self._app = typer.Typer()
        add(self._app, "jobs", jobs)
        self._app.command()(_other)

    def __call__(self, *words: str) -> str:
        """Run ``keyturn jobs ...``; return its output."""
        session = CommandContext(
            env={**ENV, "KEYTURN_REDIS_URL": self._url}, config=self._config
        )
        given = ["jobs", *words]
        done = CliRunner().invoke(self._app, given, obj=session, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    def listed(self) -> list[dict[str, Any]]:
        """Return what ``keyturn jobs list --json`` prints."""
        return list(json.loads(self("list", "--json")))

    def do(self, work: Callable[[Store, ThreadRef], Awaitable[object]]) -> None:
        """Do something in the store, as a gateway would."""

        async def done() -> None:
            store = Store(self._url, secrets=SECRETS)
            at = ThreadRef(store.keys_of_tenant("default"), "shop", "t1")
            await work(store, at)
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


def fails(error: Exception) -> Callable[[Store, ThreadRef], Awaitable[object]]:
    """Make a run fail."""

    async def work(store: Store, at: ThreadRef) -> None:
        await Retries(store).failed(at, error, left=RESUME)

    return work


def test_a_parked_run_is_listed_shown_and_tried_again(shell: Shell) -> None:
    assert "No run waits" in shell("list")
    shell.do(fails(KeyError(CANARY)))

    [row] = shell.listed()
    shown = shell("show", str(row["id"])[:12])
    told = shell("retry", str(row["id"]), "--by", "ana")
    [tried] = shell.listed()

    assert (row["state"], row["trouble"], row["to_do"]) == ("parked", "code", "resume")
    assert row["reason"] == "The agent's code failed (KeyError)."
    assert "KeyError" in shown
    assert CANARY not in shown + shell("list")
    assert "a gateway that serves its agent tries it now" in told
    assert tried["state"] == "waiting"

    async def is_queued_once(store: Store, at: ThreadRef) -> None:
        assert await store.queue(at.keys).depth() == 1
        events = await announced(store.conn, at.keys)
        [event] = [one for one in events if one.name is EventName.RUN_RETRIED]
        assert (event.actor, event.data["gesture"]) == ("ana", "cli")

    shell.do(is_queued_once)


def test_a_waiting_run_is_tried_at_once_and_has_one_job(shell: Shell) -> None:
    shell.do(fails(ConnectionError()))
    shell("retry", "--all")

    async def is_due(store: Store, at: ThreadRef) -> None:
        assert await store.conn.command("ZCARD", at.keys.retry) == 0
        assert await store.conn.command("XLEN", at.keys.jobs) == 1

    shell.do(is_due)


def test_a_dropped_run_is_gone_and_brought_forward_by_nobody(shell: Shell) -> None:
    shell.do(fails(ConnectionError()))
    [row] = shell.listed()

    assert "was dropped" in shell("drop", str(row["id"]))
    assert shell.listed() == []
    with pytest.raises(SettingsError, match="No run"):
        shell("retry", str(row["id"]))

    async def is_dropped(store: Store, at: ThreadRef) -> None:
        events = await announced(store.conn, at.keys)
        [event] = [one for one in events if one.name is EventName.RUN_DROPPED]
        assert event.data["gesture"] == "cli"
        assert await store.queue(at.keys).depth() == 0
        assert await store.stalled.is_dropped(at.keys, at.run)

    shell.do(is_dropped)


def test_a_name_that_stands_for_nothing_or_for_several_is_refused(
    shell: Shell,
) -> None:
    async def two(store: Store, at: ThreadRef) -> None:
        await fails(KeyError())(store, at)
        other = ThreadRef(at.keys, at.agent, "t2")
        await fails(KeyError())(store, other)

    shell.do(two)

    with pytest.raises(SettingsError, match="matches 2 runs"):
        shell("show", "run_")
    with pytest.raises(SettingsError, match="No run 'x'"):
        shell("drop", "x")
    with pytest.raises(SettingsError, match="Name one run"):
        shell("retry")


def test_names_of_a_thread_steer_no_terminal(shell: Shell) -> None:
    async def hostile(store: Store, at: ThreadRef) -> None:
        await fails(KeyError())(store, ThreadRef(at.keys, "a", "\x1b[2J"))

    shell.do(hostile)
    [row] = shell.listed()

    assert "\x1b" not in shell("list") + shell("show", str(row["id"]))
