"""A store's records of threads, for the process that runs them."""

from __future__ import annotations

import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from typing_extensions import override

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import ThreadUnknown
from keyturn.gateway.protocol.http_api import HandingGateway, OpenQuestion
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.resume.threads import (
    Answers,
    Threads,
    ThreadState,
    asked_items,
    questions_of,
)
from keyturn.gateway.service.people.freezing import run_event
from keyturn.gateway.service.run.agents import RunCalls
from keyturn.gateway.service.run.claiming import Found, find_answers
from keyturn.gateway.store.connection.connection import text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.runs.jobs import HALTED
from keyturn.gateway.store.runs.leases import while_held
from keyturn.gateway.store.scripts.fences import Lease
from keyturn.gateway.store.store import Store

MAX_CHARS = 12_000
"""Longest final message: the limit of one Slack message."""


async def announce_end(
    store: Store, keys: Keys, run: RunRef, checkpoint: str, words: str
) -> bool:
    """Announce a run's final message, once for this checkpoint; False on a repeat.

    The audit log cannot be erased, so it gets the event without the message, which may
    quote arguments.

    Raises:
        LeaseLost: another process runs the thread now; nothing was announced.
    """
    event = await run_event(store, keys, run, EventName.RUN_FINISHED)
    outbox_event = event.with_(data={**event.data, "text": _bounded(words)})
    return await store.threads.announce(
        keys,
        run.agent,
        run.thread,
        what="ended",
        mark=checkpoint,
        outbox_event=outbox_event.model_dump_json(),
        audit_event=event.model_dump_json(),
    )


def _bounded(words: str) -> str:
    cut = len(words) - MAX_CHARS
    if cut <= 0:
        return words
    # Inside the limit: Slack counts the note, too.
    note = f"… ({cut} more characters)"
    return words[: MAX_CHARS - len(note)] + note


logger = logging.getLogger(__name__)

_UNENDED = {ItemState.PENDING, ItemState.AUTHORIZED, ItemState.HANDING_OVER}

T = TypeVar("T")


class StoreThreads(RunCalls, Threads):
    """The threads of a tenant's agents; see `Threads`."""

    @override
    def lease(self, run: RunRef) -> AbstractAsyncContextManager[Lease]:
        """See `Threads.lease`."""
        return thread_lease(self._store, self._keys, run)

    @property
    @override
    def gateway(self) -> HandingGateway:
        """See `Threads.gateway`."""
        return self._agents

    @override
    async def found(
        self, run: RunRef, questions: Sequence[OpenQuestion]
    ) -> Mapping[OpenQuestion, tuple[JsonObject, int]]:
        """Return the answers to those questions whose item is decided.

        A question counts only if the stored record confirms that its item belongs to
        this thread's run and to this hash: the question itself comes from the agent.

        Raises:
            GraphError: the agent's own name differs from the name in the settings.
        """
        return _told(await self._answers(run, questions))

    @override
    async def answers(self, run: RunRef, pending: Sequence[Question]) -> Answers:
        """See `Threads.answers`."""
        found = await self._answers(run, questions_of(pending))
        trace = next((one.trace for one in found.values() if one.trace), "")
        return replace(Answers.to(pending, _told(found)), trace=trace)

    async def _answers(
        self, run: RunRef, questions: Sequence[OpenQuestion]
    ) -> Mapping[OpenQuestion, Found]:
        hides = self._agents.hides_reviewers
        return await find_answers(self._store, run, questions, hides_reviewers=hides)

    @override
    async def handed(self, run: RunRef) -> Sequence[Item]:
        """See `Threads.handed`."""
        return [
            item
            for one in await self._unfinished(run)
            for item in one.approval.items
            if item.handed_to and item.state in _UNENDED
        ]

    @override
    async def ends(self, run: RunRef) -> None:
        """See `Threads.ends`."""
        await self._agents.supersede_run(run)

    @override
    async def opens(self, run: RunRef, *, has_past: bool) -> None:
        """See `Threads.opens`."""
        place = (self._keys, run.agent, run.thread)
        if not await self._store.threads.is_run_open(*place):
            await self._store.threads.open_run(*place, has_past=has_past)

    @override
    async def takes_up(self, run: RunRef) -> bool:
        """See `Threads.takes_up`."""
        stalled = self._keys.stalled_run(run.agent, run.thread)
        return await self._store.stalled.taken_up(self._keys, stalled)

    @override
    async def starts(self, run: RunRef, key: str) -> Collection[str]:
        """See `Threads.starts`."""
        event = await run_event(self._store, self._keys, run, EventName.RUN_STARTED)
        body = event.model_dump_json()
        await self._store.threads.announce(
            self._keys, run.agent, run.thread,
            what="begun", mark=key, outbox_event=body, audit_event=body
        )  # fmt: skip
        return await self.unfinished(run)

    @override
    async def supersedes(
        self, run: RunRef, state: ThreadState, before: Collection[str]
    ) -> None:
        """End the calls from before a new message; the card reports it.

        The middleware does this too; this also covers a graph that lost it.
        """
        items = asked_items(state.pending)
        dropped = [
            approval.id
            for approval in await self.droppable(run, items)
            if approval.id in before
            and not any(item.id in items for item in approval.items)
        ]
        await self._agents.supersede_approvals(dropped)

    @override
    async def finishes(self, run: RunRef, state: ThreadState) -> None:
        """See `Threads.finishes`."""
        place, words = state.checkpoint, state.final_message
        await announce_end(self._store, self._keys, run, place, words)

    @override
    async def rests(self, run: RunRef, state: ThreadState) -> None:
        """Withdraw calls without a question: another middleware dropped them.

        While the thread rests on a question, an authorized item may belong to a tool
        that contains the question, so only pending items end.

        Raises:
            ThreadUnknown: there is no such thread, but it has approved calls.
        """
        if not state.exists:
            if await self._has_approved(run):
                raise ThreadUnknown(run.agent, run.thread)
            logger.warning("thread.unknown agent=%s thread=%s", run.agent, run.thread)
        await super().rests(run, state)

    @override
    async def marked(self, run: RunRef) -> str:
        """See `Threads.marked`."""
        key = self._keys.thread_facts(run.agent, run.thread)
        return text(await self._store.conn.command("HGET", key, HALTED))

    @override
    async def mark(self, run: RunRef, mark: str) -> None:
        """See `Threads.mark`."""
        key, conn = self._keys.thread_facts(run.agent, run.thread), self._store.conn
        if mark:
            # A durable write: without the mark, a job in any process would resume the
            # thread.
            await conn.keep(["HSET", key, HALTED, mark])
        else:
            await conn.command("HDEL", key, HALTED)

    async def unfinished(self, run: RunRef) -> list[str]:
        """Return ids of the run's unfinished approvals."""
        return await self._store.approvals.unfinished_of_run(self._keys, run)

    async def _has_approved(self, run: RunRef) -> bool:
        """Return True if people approved a call of the run that has not run."""
        return any(
            item.state is ItemState.AUTHORIZED and not item.is_auto_approved
            for one in await self._unfinished(run)
            for item in one.approval.items
        )


def _told(
    found: Mapping[OpenQuestion, Found],
) -> Mapping[OpenQuestion, tuple[JsonObject, int]]:
    return {asked: (one.answer, one.times) for asked, one in found.items()}


@asynccontextmanager
async def thread_lease(store: Store, keys: Keys, run: RunRef) -> AsyncGenerator[Lease]:
    """Acquire the right to run a thread; it may end inside the block at any time.

    Raises:
        ThreadUnavailable: another process runs it.
    """
    threads, name = store.threads, (run.agent, run.thread)
    async with threads.lease(keys, *name) as lease:
        threads.at_work.add(name)
        try:
            yield lease
        finally:
            threads.at_work.discard(name)


async def under_lease(
    store: Store, keys: Keys, run: RunRef, work: Callable[[], Awaitable[T]]
) -> T:
    """Run ``work`` under the thread's lease; see `while_held`.

    Two processes that resume one thread at the same time lose its continuation: both
    get "ok", and the model is never called again.

    Raises:
        ThreadUnavailable: another process runs it.
        LeaseLost: the lease was lost and the work was stopped.
    """
    return await while_held(thread_lease(store, keys, run), work)
