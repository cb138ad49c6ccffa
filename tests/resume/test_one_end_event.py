"""The end of a thread is announced once, by the process that runs the thread."""

from __future__ import annotations

from typing import Any, cast

import pytest

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.resume.store_threads import ThreadRef, announce_end, under_lease
from keyturn.gateway.store.keys import KEEP_MS
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.store import Store
from tests.resume.resume_stack import Stack
from tests.service.harness import DAN


def place(store: Store) -> ThreadRef:
    """Return a thread of the shop's agent."""
    return ThreadRef(store.keys_of_tenant("default"), "shop", "t1")


async def test_who_lost_the_lease_tells_no_end_over_what_came_after(
    stack: Stack,
) -> None:
    at = place(stack.store)

    async def late() -> None:
        await stack.store.conn.command("DEL", at.keys.lease("shop", "t1"))
        await under_lease(stack.store, at, newer)
        await announce_end(stack.store, at, "c1", "old words")

    async def newer() -> None:
        await announce_end(stack.store, at, "c2", "new words")

    with pytest.raises(LeaseLost):
        await under_lease(stack.store, at, late)
    [event] = await stack.events(EventName.RUN_FINISHED)
    assert event.data["text"] == "new words"


async def test_a_run_that_begins_right_after_the_end_was_told_keeps_its_people(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, at = stack.store.threads, place(stack.store)
    where = (at.keys, at.agent, at.thread)
    await threads.change(*where, lambda _: ThreadFacts(requester=DAN), why="aside")
    announce = threads.announce

    async def then_another_begins(*args: Any, **named: Any) -> bool:
        is_new = await announce(*args, **named)
        await threads.open_run(*where, has_past=False)
        return is_new

    monkeypatch.setattr(threads, "announce", then_another_begins)
    await announce_end(stack.store, at, "c1", "done")

    facts = at.keys.thread_facts(at.agent, at.thread)
    assert await stack.store.conn.command("PTTL", facts) == -1, "it is kept for the run"


async def test_the_people_of_a_run_that_ended_are_kept_for_a_time(
    stack: Stack,
) -> None:
    threads, at = stack.store.threads, place(stack.store)
    where = (at.keys, at.agent, at.thread)
    await threads.open_run(*where, has_past=False)

    await announce_end(stack.store, at, "c1", "done")

    facts = at.keys.thread_facts(at.agent, at.thread)
    left_ms = await stack.store.conn.command("PTTL", facts)
    assert 0 < cast("int", left_ms) <= KEEP_MS
