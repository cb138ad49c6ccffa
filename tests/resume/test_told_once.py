"""The end of a thread is told once, by whoever runs the thread."""

from __future__ import annotations

import pytest

from tests.resume.resume_stack import Stack
from twokey.gateway.approvals.events import EventName
from twokey.gateway.errors import LeaseLost
from twokey.gateway.resume.announcing import Announcer, Place
from twokey.gateway.resume.leases import under_lease
from twokey.gateway.store.store import Store


def place(store: Store) -> Place:
    """Return a thread of the shop's agent."""
    return Place(store.keys_of_tenant("default"), "default", "shop", "t1")


async def test_an_end_is_told_once_for_its_checkpoint(stack: Stack) -> None:
    at, tell = place(stack.store), Announcer(stack.store)

    assert await tell.finished(at, "c1", "done")
    assert not await tell.finished(at, "c1", "done")
    assert await tell.finished(at, "c2", "done again")

    assert len(await stack.events(EventName.RUN_FINISHED)) == 2


async def test_who_lost_the_lease_tells_no_end_over_what_came_after(
    stack: Stack,
) -> None:
    at, tell = place(stack.store), Announcer(stack.store)

    async def late() -> None:
        await stack.store.conn.command("DEL", at.keys.lease("default", "shop", "t1"))
        await under_lease(stack.store, at, newer)
        await tell.finished(at, "c1", "old words")

    async def newer() -> None:
        await tell.finished(at, "c2", "new words")

    with pytest.raises(LeaseLost):
        await under_lease(stack.store, at, late)
    [event] = await stack.events(EventName.RUN_FINISHED)
    assert event.data["text"] == "new words"
