"""'keyturn erase' lists the approvals to erase, and erases them with --yes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from typing import NoReturn

import pytest
import typer
from typer.testing import CliRunner

from keyturn.cli import erase
from keyturn.cli.command_context import CommandContext
from keyturn.cli.main import add
from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.errors import SettingsError, ThreadUnavailable
from keyturn.gateway.service.people.erasing import Eraser
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness
from tests.store_secrets import ENV, SECRETS


@pytest.fixture
def url(tmp_path: Path) -> Generator[str]:
    with EmbeddedEngine(tmp_path / "engine") as engine:
        yield engine.url


def typed(url: str, folder: Path, *words: str) -> tuple[int, str]:
    """Run ``keyturn erase ...``; return its exit code and its output."""
    config = folder / "keyturn.yml"
    config.write_text(f"data_dir: {folder / 'data'}\n")
    app = typer.Typer()
    add(app, "erase", erase)
    app.command()(_other)
    session = CommandContext(env={**ENV, "KEYTURN_REDIS_URL": url}, config=config)
    done = CliRunner().invoke(app, ["erase", *words], obj=session)
    if isinstance(done.exception, SettingsError):
        raise done.exception
    return done.exit_code, done.output


def _other() -> None:
    """Keep typer from making the only command the whole program."""


async def _rejected(url: str) -> tuple[str, str]:
    """Return a call that was rejected and one that waits."""
    store = Store(url, secrets=SECRETS, lease_ms=2000)
    harness = ServiceHarness(store)
    click, _ = await harness.refund()
    await harness.reviews.decide(click, Reject(reason="no"), ANA)
    waits, _ = await harness.refund(thread="t2")
    await store.close()
    return click.approval, waits.approval


def test_it_says_first_what_it_would_erase(url: str, tmp_path: Path) -> None:
    ended, _ = asyncio.run(_rejected(url))

    code, said = typed(url, tmp_path, ended)
    _, found = typed(url, tmp_path, ended, "--json")

    assert code == 0
    assert "Would be erased: approvals: 1" in said
    assert ended in said
    assert "--yes" in said
    assert json.loads(found)["approvals"] == [ended]
    assert json.loads(found)["is_erased"] is False


def test_a_person_is_erased_and_what_waits_is_kept(url: str, tmp_path: Path) -> None:
    ended, waits = asyncio.run(_rejected(url))

    code, said = typed(url, tmp_path, "U0DAN", "--yes")
    _, again = typed(url, tmp_path, "U0DAN", "--json")

    # Something was not erased.
    assert code == 1
    assert "Erased: approvals: 1" in said
    assert ended in said
    assert f"{waits} is kept" in said
    assert "'audit_folder'" in said
    # What the log has of it can be erased later.
    assert json.loads(again)["approvals"] == [ended]


def test_what_is_no_id_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'dan' is no id.*nothing was erased"):
        typed(url, tmp_path, "dan", "--yes")


@pytest.mark.parametrize("words", [(), ("--yes",)])
def test_an_approval_that_never_was_is_not_said_to_be_erased(
    url: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError, match=r"no approval 'ap_default_0+'.*was erased"):
        typed(url, tmp_path, "ap_default_" + "0" * 32, *words)


def test_a_person_of_whom_nothing_is_kept(url: str, tmp_path: Path) -> None:
    code, said = typed(url, tmp_path, "U0NOBODY")

    assert code == 0
    assert "Nothing was found" in said


def test_what_was_erased_can_be_named_again(url: str, tmp_path: Path) -> None:
    ended, _ = asyncio.run(_rejected(url))
    typed(url, tmp_path, ended, "--yes")

    _, said = typed(url, tmp_path, ended)
    _, row = typed(url, tmp_path, ended, "--json")

    assert f"{ended}, of which only audit entries are left" in said
    assert json.loads(row)["approvals"] == json.loads(row)["gone"] == [ended]


def test_files_that_another_process_writes_are_not_said_to_be_erased(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(*_: object, **__: object) -> NoReturn:
        raise ThreadUnavailable("Another process runs this thread right now.")

    monkeypatch.setattr(Eraser, "erase", busy)

    with pytest.raises(SettingsError, match=r"the erasure is incomplete.*15 seconds"):
        typed(url, tmp_path, "U0DAN", "--yes")
