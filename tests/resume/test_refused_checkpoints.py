"""While the checkpoints take nothing, people are left with one open card at most."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume.resume_stack import AT_ONCE, Stack, open_stack

REFUND = ("refund", {"order": "78291", "amount": 899})
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
            await stack.ask(REFUND)
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
            await stack.ask(REFUND)
            await _retried(stack)
            for table in ("checkpoints", "writes"):
                others(f"DROP TRIGGER no_{table}")
            await stack.asked()
        *earlier, last = await stack.states()

    assert len(opened) == len(earlier) + 1 > 1
    assert {*earlier} == {ItemState.SUPERSEDED}
    assert last is ItemState.PENDING
