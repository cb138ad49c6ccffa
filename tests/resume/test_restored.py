"""An older copy of the store or of the checkpoints runs nothing twice by itself."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from keyturn.cli import main as cli
from keyturn.gateway.approvals.decisions import Reconcile
from keyturn.gateway.approvals.ending import RESTORED, THREAD_LOST
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.recovery import Consistency, RestoreDetector
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import REFUND, Stack, open_stack
from tests.store_secrets import ENV, SECRETS
from tests.streams import audit_entries

RAN = "refunded 78291 899"


@asynccontextmanager
async def on_disk(folder: Path) -> AsyncGenerator[Stack]:
    """Open a gateway whose store and checkpoints are files."""
    async with EmbeddedEngine(folder / "valkey") as engine:
        store = Store(engine.url, secrets=SECRETS, lease_ms=1000)
        async with open_stack(store, folder / "checkpoints.sqlite") as stack:
            yield stack
        await store.close()


def copied(folder: Path, part: str) -> None:
    """Keep a copy of one side, as a backup of stopped processes does."""
    ignored = shutil.ignore_patterns("*.sock", "*.pid", "*.lock")
    (folder / "copy").mkdir(exist_ok=True)
    for found in folder.glob(f"{part}*"):
        kept = folder / "copy" / found.name
        if found.is_dir():
            shutil.copytree(found, kept, ignore=ignored)
        else:
            shutil.copy(found, kept)


def restored(folder: Path, part: str) -> None:
    """Replace the data of one side with its copy."""
    for found in folder.glob(f"{part}*"):
        shutil.rmtree(found) if found.is_dir() else found.unlink()
    for kept in (folder / "copy").glob(f"{part}*"):
        kept.rename(folder / kept.name)


async def waits(stack: Stack) -> None:
    """Bring the thread to its interrupt."""
    async with stack.working():
        await stack.ask(REFUND)
        await stack.asked()
        await stack.idle()


async def runs(stack: Stack) -> None:
    """Approve the call, and run it to the end."""
    async with stack.working():
        [item] = await stack.items()
        await stack.decide(item)
        assert await stack.words() == RAN
        await stack.idle()


async def until(stack: Stack, states: list[ItemState]) -> None:
    """Wait until the thread's calls have these states."""

    async def is_so() -> bool:
        return await stack.states() == states

    await eventually(is_so)


@pytest.mark.slow
async def test_an_older_store_doubts_a_call_that_ran(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as stack:
        await waits(stack)
    copied(tmp_path, "valkey")
    async with on_disk(tmp_path) as stack:
        await runs(stack)
    restored(tmp_path, "valkey")

    async with on_disk(tmp_path) as stack:
        assert await stack.states() == [ItemState.PENDING]
        async with stack.working():
            await until(stack, [ItemState.WITHDRAWN])
        [item] = await stack.items()
        [told] = await stack.events(EventName.ITEM_REOPENED)

    assert item.is_restored
    assert told.reason == RESTORED
    assert len(sample_tools.ledger()) == 1


@pytest.mark.slow
async def test_an_older_stores_approval_is_doubted(
    tmp_path: Path,
) -> None:
    async with on_disk(tmp_path) as stack:
        await waits(stack)
        [item] = await stack.items()
        await stack.decide(item)
    copied(tmp_path, "valkey")
    async with on_disk(tmp_path) as stack, stack.working():
        assert await stack.words() == RAN
        await stack.idle()
    restored(tmp_path, "valkey")

    async with on_disk(tmp_path) as stack, stack.working():
        await until(stack, [ItemState.IN_DOUBT])
        [item] = await stack.items()
        await stack.decide(item, Reconcile(finding=Finding.EXECUTED))
        await until(stack, [ItemState.EXECUTED])
        await stack.idle()

    assert len(sample_tools.ledger()) == 1


async def consistency_of(stack: Stack) -> Consistency:
    """Return how the two sides of a gateway relate."""
    assert stack.saver
    return await RestoreDetector(stack.store, stack.saver).compare()


async def live_on(folder: Path) -> None:
    """Give both sides marks that no copy has."""
    async with on_disk(folder) as stack:
        assert stack.saver
        for _ in range(20):
            await RestoreDetector(stack.store, stack.saver).equalize()
        assert await consistency_of(stack) is Consistency.SAME


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "seen"),
    [
        ("valkey", Consistency.STORE_IS_OLDER),
        ("checkpoints", Consistency.CHECKPOINTS_ARE_OLDER),
    ],
)
async def test_the_side_that_went_back_is_named(
    tmp_path: Path, part: str, seen: Consistency
) -> None:
    async with on_disk(tmp_path) as stack:
        await waits(stack)
        assert await consistency_of(stack) is Consistency.SAME
    copied(tmp_path, part)
    await live_on(tmp_path)
    restored(tmp_path, part)

    async with on_disk(tmp_path) as stack:
        assert await consistency_of(stack) is seen
        async with stack.working():
            assert await consistency_of(stack) is Consistency.SAME


async def test_stores_may_share_checkpoints(tmp_path: Path, store: Store) -> None:
    async with (
        EmbeddedEngine(tmp_path / "valkey") as engine,
        open_checkpoints(str(tmp_path / "checkpoints.sqlite")) as saver,
    ):
        other = Store(engine.url, secrets=SECRETS)
        both = [RestoreDetector(one, saver) for one in (store, other)]
        for detector in both * 3:
            assert await detector.compare() is Consistency.SAME
            await detector.equalize()
        await other.close()


async def test_a_store_that_is_emptied_under_a_process_is_noticed(stack: Stack) -> None:
    assert stack.saver
    detector = RestoreDetector(stack.store, stack.saver)
    await detector.advance()
    await stack.store.conn.command("FLUSHALL")

    assert await detector.compare() is Consistency.STORE_IS_OLDER
    await detector.equalize()
    assert await detector.compare() is Consistency.SAME


async def test_a_mark_of_another_gateway_during_a_look_is_no_loss(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stack.saver
    saver = stack.saver
    await RestoreDetector(stack.store, saver).advance()
    read = saver.aget_tuple

    async def while_another_marks(config: RunnableConfig) -> CheckpointTuple | None:
        with monkeypatch.context() as alone:
            alone.setattr(saver, "aget_tuple", read)
            await RestoreDetector(stack.store, saver).advance()
        return cast("CheckpointTuple | None", await read(config))

    monkeypatch.setattr(saver, "aget_tuple", while_another_marks)

    assert await consistency_of(stack) is Consistency.SAME


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


@pytest.mark.slow
async def test_two_sides_of_one_moment_are_doubted_when_the_operator_says_so(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with on_disk(tmp_path) as stack:
        await waits(stack)
        [item] = await stack.items()
        await stack.decide(item)
    for part in ("valkey", "checkpoints"):
        copied(tmp_path, part)
    async with on_disk(tmp_path) as stack, stack.working():
        assert await stack.words() == RAN
        await stack.idle()
    for part in ("valkey", "checkpoints"):
        restored(tmp_path, part)

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
