"""A click that no replica has confirmed is repeated until one has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from keyturn.bot.ids import Action
from keyturn.bot.listeners import router
from keyturn.gateway.errors import NotConfirmed
from keyturn.gateway.store.connection.connection import Connection, Reply
from keyturn.gateway.store.records import atomic_write
from keyturn.gateway.store.records.atomic_write import CHANGE
from tests.bot.bot_stack import Stack


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "CONFIRM_EVERY_S", 0.01)


def unconfirmed(patch: pytest.MonkeyPatch, *, times: int, is_kept: bool) -> list[int]:
    """Make replicas confirm nothing this many times; return the counter of writes."""
    change, tries = CHANGE, list[int]()

    async def tried(write: Callable[[], Awaitable[list[Reply]]]) -> list[Reply]:
        tries.append(1)
        is_late = len(tries) <= times
        reply = [] if is_late and not is_kept else await write()
        if is_late:
            raise NotConfirmed
        return reply

    async def as_it_comes(conn: Connection, **values: Any) -> list[Reply]:
        return await tried(lambda: change(conn, **values))

    patch.setattr(atomic_write, "CHANGE", as_it_comes)
    return tries


@pytest.mark.parametrize(
    ("is_kept", "last"), [(True, "Already approved"), (False, "confirmed now")]
)
async def test_an_unconfirmed_click_is_repeated_and_its_end_is_told(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool, last: str
) -> None:
    tries = unconfirmed(monkeypatch, times=3, is_kept=is_kept)
    async with stack.running():
        verdict = await stack.refund()

        await stack.click(verdict, Action.APPROVE)

        await stack.told("U0ANA", "Trying again; you will be told.")
        await stack.told("U0ANA", last)
        item = await stack.item(verdict)
        assert item.decision is not None
        # The first repetition finds the stored decision, and does not write it again.
        assert (len(tries), len(item.votes)) == (1 if is_kept else 4, 1)


async def test_a_click_that_is_never_confirmed_is_never_called_so(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "CONFIRM_TRIES", 3)
    unconfirmed(monkeypatch, times=99, is_kept=False)
    async with stack.running():
        verdict = await stack.refund()

        await stack.click(verdict, Action.APPROVE)

        await stack.told("U0ANA", "so it may yet be lost")
