"""An older copy of the store or of the checkpoints runs nothing twice by itself."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from keyturn.cli import main as cli
from keyturn.gateway.approvals.decisions import Reconcile
from keyturn.gateway.approvals.ending import RESTORED, THREAD_LOST
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.resume import recovery
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.resume.recovery import Consistency, Recovery, RestoreDetector
from keyturn.gateway.resume.threads import ThreadState
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.runs.jobs import JobKind
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import AT_ONCE, REFUND, Stack, open_stack
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
async def test_an_older_stores_approval_is_doubted(tmp_path: Path) -> None:
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


# Losses of one side are found from the other, answered, and reported.


def looking(stack: Stack) -> Recovery:
    """Return what looks at both sides."""
    return Recovery(stack.store, Runners(stack.runners, stack.saver))


def forget_checkpoints(folder: Path) -> None:
    """Delete the file of the checkpoints."""
    for file in folder.glob("checkpoints.sqlite*"):
        file.unlink()


async def problems(stack: Stack) -> list[str]:
    """Return what a look finds, without changing anything."""
    return [gap.problem for gap in (await looking(stack).compare()).mismatches]


async def waits_for(stack: Stack, thread: str = "t1") -> None:
    """Bring a thread to its interrupt for a refund."""
    async with stack.working():
        await stack.ask(REFUND, thread=thread)
        await stack.asked(thread=thread)
        await stack.idle()


async def all_ended(stack: Stack) -> bool:
    """Return whether the store has no more pending items."""
    return not await stack.store.approvals.scheduled(stack.keys)


@pytest.mark.slow
async def test_a_thread_of_a_lost_record_is_told_and_ends(stack: Stack) -> None:
    await waits_for(stack)
    await stack.store.conn.command("FLUSHALL")

    assert await problems(stack) == [recovery.RECORD_LOST]
    async with stack.working():
        told = await stack.words()

    assert "has no record of this call" in told
    assert "Look before you ask again whether it ran before." in told
    assert sample_tools.ledger() == []
    assert await problems(stack) == []


@pytest.mark.slow
async def test_older_checkpoints_get_decisions(store: Store, tmp_path: Path) -> None:
    file, copy = tmp_path / "checkpoints.sqlite", tmp_path / "copy"
    async with open_stack(store, file) as stack:
        await waits_for(stack)
    copy.write_bytes(file.read_bytes())
    async with open_stack(store, file) as stack, stack.working():
        [item] = await stack.items()
        await stack.decide(item)
        ran = await stack.words()
    forget_checkpoints(tmp_path)
    copy.rename(file)

    async with open_stack(store, file) as stack:
        assert await problems(stack) == [recovery.DECIDED]
        async with stack.working():
            assert await stack.words(2) == ran

    assert len(sample_tools.ledger()) == 1


async def lose_the_jobs(stack: Stack) -> None:
    """Drop every job, as a failover of the store could."""
    queue = stack.store.queue(stack.keys)
    while taken := await queue.take(block_ms=1):
        await queue.done(taken)


@pytest.mark.slow
async def test_a_decision_whose_job_is_gone_is_carried_out(stack: Stack) -> None:
    await waits_for(stack)
    [item] = await stack.items()
    await stack.decide(item)
    await lose_the_jobs(stack)

    assert await problems(stack) == [recovery.DECIDED]
    async with stack.working():
        assert await stack.words() == "refunded 78291 899"
        await stack.idle()

    assert len(sample_tools.ledger()) == 1
    assert await problems(stack) == []


async def test_a_thread_that_was_cut_off_is_queued_while_no_process_runs_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await waits_for(stack)
    state = await stack.runner.probe("t1")
    queue = stack.store.queue(stack.keys)

    async def cut_off(_thread: str) -> ThreadState:
        return replace(state, pending=(), is_cut_off=True)

    monkeypatch.setattr(stack.runner, "probe", cut_off)

    assert await problems(stack) == [recovery.CUT_OFF]
    async with stack.store.threads.lease(stack.keys, "shop", "t1"):
        assert await problems(stack) == []
    await looking(stack).recover(is_only_process=False)
    taken = await queue.take(block_ms=1)
    assert taken
    assert (taken.job.kind, taken.job.thread) == (JobKind.RESUME, "t1")


async def test_a_thread_another_gateway_may_have_goes_on(stack: Stack) -> None:
    await waits_for(stack)
    await stack.runner.delete("t1")

    found = await looking(stack).recover(is_only_process=False)

    assert [gap.problem for gap in found.gone] == [recovery.THREAD_GONE]
    assert await stack.states() == [ItemState.PENDING]
    await looking(stack).recover(is_only_process=True)
    assert await all_ended(stack)


@pytest.mark.slow
async def test_a_call_that_its_thread_forgot_is_found(stack: Stack) -> None:
    await waits_for(stack)
    await stack.runner.delete("t1")
    await stack.runner.start("t1", "hello", key="k")

    assert await problems(stack) == [recovery.THREAD_ENDED]
    async with stack.working():
        await eventually(lambda: all_ended(stack))

    assert await stack.states() == [ItemState.WITHDRAWN]


@pytest.mark.slow
async def test_an_error_about_one_thread_keeps_no_other_from_being_found(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await waits_for(stack, "t1")
    await waits_for(stack, "t2")
    for thread in ("t1", "t2"):
        await stack.runner.delete(thread)
    probe = stack.runner.probe

    async def probed(thread: str) -> ThreadState:
        if thread == "t1":
            raise OSError("the disk")
        return await probe(thread)

    monkeypatch.setattr(stack.runner, "probe", probed)

    gaps = (await looking(stack).compare()).mismatches

    assert [gap.thread for gap in gaps] == ["t2"]


async def test_threads_of_other_programs_are_counted_and_left(stack: Stack) -> None:
    await waits_for(stack)
    await stack.store.conn.command("FLUSHALL")
    stack.runners = {"other": stack.runner}

    found = await looking(stack).recover(is_only_process=True)

    assert (found.mismatches, found.unserved) == ((), 1)
    assert await stack.store.queue(stack.keys).depth() == 0


# While the checkpoints take nothing, people are left with one open card at most.


REFUND_CALL = ("refund", {"order": "78291", "amount": 899})
REFUSES = """
CREATE TRIGGER no_{0} BEFORE INSERT ON {0}
WHEN (SELECT count(*) FROM checkpoints) >= 4
BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END
"""
"""From the model's answer on: a thread has four checkpoints when it is asked."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.db"


@pytest.fixture
def others(path: Path) -> Generator[Callable[[str], object]]:
    """Return how another process runs a statement on the same file."""
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        yield conn.execute


async def _has_failed(stack: Stack, times: int) -> bool:
    runs = await stack.store.stalled.all(stack.keys)
    return any(one.attempts >= times for one in runs)


async def _retried(stack: Stack, times: int = 4) -> None:
    await eventually(lambda: _has_failed(stack, times))


def _counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return one entry for each turn that is opened from here on."""
    opened, plain = list[None](), store.approvals.open_turn

    async def open_turn(*given: Any, **named: Any) -> Any:
        opened.append(None)
        return await plain(*given, **named)

    monkeypatch.setattr(store.approvals, "open_turn", open_turn)
    return opened


async def test_while_another_process_has_locked_them_the_model_is_not_asked(
    store: Store, path: Path, others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt writes its fence before it does anything."""
    opened, plain = list[None](), store.approvals.open_turn

    async def open_turn(*given: Any, **named: Any) -> Any:
        if not opened:
            others("BEGIN IMMEDIATE")
        opened.append(None)
        return await plain(*given, **named)

    monkeypatch.setattr(store.approvals, "open_turn", open_turn)
    async with open_stack(store, path) as stack:
        saver: Any = stack.saver
        await saver.conn.execute("PRAGMA busy_timeout = 5")
        async with stack.working(retries=AT_ONCE):
            await stack.ask(REFUND_CALL)
            await _retried(stack)
            before = len(opened)
            others("COMMIT")
            await stack.asked()
        states = await stack.states()

    assert before == 1
    assert states == [ItemState.SUPERSEDED, ItemState.PENDING]


async def test_where_nothing_of_an_answer_is_kept_the_next_ends_its_card(
    store: Store, path: Path, others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = _counted(store, monkeypatch)
    async with open_stack(store, path) as stack:
        for table in ("checkpoints", "writes"):
            others(REFUSES.format(table))
        async with stack.working(retries=AT_ONCE):
            await stack.ask(REFUND_CALL)
            await _retried(stack)
            for table in ("checkpoints", "writes"):
                others(f"DROP TRIGGER no_{table}")
            await stack.asked()
        *earlier, last = await stack.states()

    assert len(opened) == len(earlier) + 1 > 1
    assert {*earlier} == {ItemState.SUPERSEDED}
    assert last is ItemState.PENDING
