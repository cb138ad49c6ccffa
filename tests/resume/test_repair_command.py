"""An operator sees what a restore left behind, and has it repaired before a start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from keyturn.cli import main as cli
from keyturn.gateway.approvals.decisions import Reconcile
from keyturn.gateway.approvals.ending import THREAD_LOST
from keyturn.gateway.protocol.records import Finding, ItemState
from tests.resume import sample_tools
from tests.resume.test_restored import (
    RAN,
    copied,
    on_disk,
    restored,
    until,
    waits,
)
from tests.store_secrets import ENV
from tests.streams import audit_entries

SETTINGS = """
agents: {shop: {graph: "tests.resume.sample_tools:graph"}}
data_dir: .
policy: {version: 1}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write the settings of a gateway with its data in the same folder."""
    path = tmp_path / "keyturn.yml"
    path.write_text(SETTINGS)
    return path


async def told(config: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the command, and return its output."""
    capsys.readouterr()
    given = ["--config", str(config), "repair", *words]
    code = await asyncio.to_thread(cli.run, given, {**ENV, "NO_COLOR": "1"})
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


async def approved_copy(folder: Path) -> None:
    """Put back both sides as they were before an approved call ran."""
    async with on_disk(folder) as stack:
        await waits(stack)
        [item] = await stack.items()
        await stack.decide(item)
    for part in ("valkey", "checkpoints"):
        copied(folder, part)
    async with on_disk(folder) as stack, stack.working():
        assert await stack.words() == RAN
        await stack.idle()
    for part in ("valkey", "checkpoints"):
        restored(folder, part)


@pytest.mark.slow
async def test_two_sides_of_one_moment_are_doubted_when_the_operator_says_so(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await approved_copy(tmp_path)

    dry = await told(config, capsys, "--restored", "--dry-run")
    assert "authorized → in_doubt" in dry
    assert "Nothing was changed" in dry
    async with on_disk(tmp_path) as stack:
        assert await stack.states() == [ItemState.AUTHORIZED]

    assert "repaired" in await told(config, capsys, "--restored")
    async with on_disk(tmp_path) as stack, stack.working():
        await until(stack, [ItemState.IN_DOUBT])
        [item] = await stack.items()
        await stack.decide(item, Reconcile(finding=Finding.EXECUTED))
        assert "confirmed that it took effect" in await stack.words()
        await stack.idle()
    assert len(sample_tools.ledger()) == 1


@pytest.mark.slow
async def test_what_waits_for_lost_checkpoints_is_ended_at_once(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with on_disk(tmp_path) as stack:
        await waits(stack)
        [item] = await stack.items()
        await stack.decide(item)
    for file in tmp_path.glob("checkpoints.sqlite*"):  # noqa: ASYNC240 - a few files
        file.unlink()

    said = await told(config, capsys, "--dry-run")
    await told(config, capsys)

    assert "The checkpoints do not have the thread of a call that waits." in said
    async with on_disk(tmp_path) as stack:
        assert await stack.states() == [ItemState.LAPSED]
        audit = await audit_entries(stack.store.conn, stack.keys)
        assert audit[-1].reason == THREAD_LOST
    assert "No repair is needed." in await told(config, capsys)
