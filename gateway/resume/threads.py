"""A gateway's records of the threads that this process runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from keyturn.gateway.approvals.record import Item
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.protocol.http_api import OpenQuestion, PendingCall, RunFacts
from keyturn.gateway.protocol.port import HandingGateway
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.resume.thread_state import (
    Answers,
    ThreadState,
    asked_items,
    question_of,
    questions_of,
)
from keyturn.gateway.store.scripts.fences import Lease


class Threads:
    """A gateway's records of the threads that this process runs.

    The caller has the thread's lease. By default only marks are kept, in this process:
    for threads that no job of the gateway advances.

    Attributes:
        polls: this process asks for the answers to its threads' questions.
    """

    polls = False

    def __init__(self) -> None:
        self._marks: dict[RunRef, str] = {}

    @abstractmethod
    def lease(self, run: RunRef) -> AbstractAsyncContextManager[Lease]:
        """Acquire the right to run a thread."""

    @abstractmethod
    async def remember(self, facts: RunFacts) -> None:
        """Save the requester of a run and the origin, where provided."""

    @abstractmethod
    async def pending(self, run: RunRef) -> tuple[PendingCall, ...]:
        """Return the calls of a run that wait for reviewers, oldest first."""

    @abstractmethod
    async def withdraw(
        self, run: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """End waiting calls of a run; return the ids of the ended calls."""

    @property
    @abstractmethod
    def gateway(self) -> HandingGateway:
        """Return the agents' gateway."""

    async def answers(self, run: RunRef, pending: Sequence[Question]) -> Answers:
        """Return the available answers to a thread's questions."""
        return Answers.to(pending, await self.found(run, questions_of(pending)))

    @abstractmethod
    async def found(
        self, run: RunRef, questions: Sequence[OpenQuestion]
    ) -> Mapping[OpenQuestion, tuple[JsonObject, int]]:
        """Return the answers to questions, each with its number of revocations."""

    async def handed(self, run: RunRef) -> Sequence[Item]:
        """Return the calls of a run to hand over that have no end yet."""
        del run
        return ()

    @abstractmethod
    async def settle(
        self, run: RunRef, asked: Collection[str], *, is_finished: bool
    ) -> None:
        """End a resting thread's waiting calls, except those that it asks about."""

    async def rests(self, run: RunRef, state: ThreadState) -> None:
        """End the calls that a resting thread no longer asks about.

        A question of another library may come before the tools, which then have no
        questions yet.
        """
        if state.exists and all(question_of(one) for one in state.pending):
            asked = asked_items(state.pending)
            await self.settle(run, asked, is_finished=state.is_finished)

    @abstractmethod
    async def ends(self, run: RunRef) -> None:
        """End all waiting calls of a run: its thread is deleted."""

    async def opens(self, run: RunRef, *, has_past: bool) -> None:
        """Keep the requester until the run has ended; a thread may have run before."""

    async def takes_up(self, run: RunRef) -> bool:
        """Take up a dropped run; False if the run was not dropped."""
        del run
        return False

    async def starts(self, run: RunRef, key: str) -> Collection[str]:
        """Announce a run, once for this input; return its earlier approvals."""
        del run, key
        return ()

    async def supersedes(
        self, run: RunRef, state: ThreadState, before: Collection[str]
    ) -> None:
        """End those approvals of ``before`` that a thread does not ask about."""

    async def finishes(self, run: RunRef, state: ThreadState) -> None:
        """Announce a run's final message, once for this checkpoint."""

    async def marked(self, run: RunRef) -> str:
        """Return the mark of a thread; "" for none."""
        return self._marks.get(run, "")

    async def mark(self, run: RunRef, mark: str) -> None:
        """Save a mark of a thread; "" removes it."""
        self._marks[run] = mark
