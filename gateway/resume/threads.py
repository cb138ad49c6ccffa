"""The state of a thread, its open questions and their answers, and its records."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import cast

from keyturn.gateway.approvals.record import Item
from keyturn.gateway.dialects import dialects
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.protocol.http_api import (
    HandingGateway,
    OpenQuestion,
    PendingCall,
    RunFacts,
)
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import APPROVAL_INTERRUPT, RECONCILE_INTERRUPT
from keyturn.gateway.store.scripts.fences import Lease


class AnswerRefused(KeyturnError):
    """The runtime refused an answer and did not save it.

    Attributes:
        is_stale: True if the question is no longer open: read the thread again. False
            if the answer does not fit its question.
    """

    def __init__(self, problem: str, *, is_stale: bool) -> None:
        self.is_stale = is_stale
        super().__init__(problem)


@dataclass(frozen=True)
class ThreadState:
    """State of a thread, read from its checkpoint.

    Attributes:
        exists: False for a thread without any checkpoint; never resume such a thread.
        pending: its open questions.
        has_tasks: work is left, with or without a question.
        is_cut_off: some of that work waits for no answer: its process died, it raised,
            or it stopped at a breakpoint. Other tasks may have open questions.
        checkpoint: id of the checkpoint that was read.
        taken: key of the last input that started the thread.
        final_message: text of the agent's last message in this turn.
        schemas: JSON Schemas of the tools whose questions in other libraries' formats
            are put to people; None: such questions are not put to people.
        handed: of these, the questions to the gateway that people have not decided.
    """

    exists: bool
    pending: tuple[Question, ...] = ()
    has_tasks: bool = False
    is_cut_off: bool = False
    checkpoint: str = ""
    taken: str = ""
    final_message: str = ""
    schemas: Mapping[str, JsonObject] | None = None
    handed: tuple[OpenQuestion, ...] = ()

    @property
    def is_finished(self) -> bool:
        """Return True if no work and no question is left; ``next`` is unreliable."""
        return self.exists and not self.has_tasks and not self.pending

    @property
    def hands_over(self) -> bool:
        """Return True if questions of other libraries are put to people."""
        return self.schemas is not None

    @property
    def asks_people(self) -> bool:
        """Return True if a decision of people can answer one of its questions."""
        return any(
            question_of(one) or (self.hands_over and is_known(one))
            for one in self.pending
        )


@dataclass(frozen=True)
class ThreadChange:
    """A thread may have advanced; ``error`` is set if its run was given up."""

    agent: str
    thread: str
    error: BaseException | None = None


@dataclass
class Answers:
    """Answers that can be sent now, by interrupt id.

    ``fingerprint`` depends on the answer and its item, not on the interrupt's id: a
    repeated question with the same fingerprint means that its answer was refused.
    ``trace`` is the ``traceparent`` that the thread continues, or "".
    """

    ready: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    fingerprint: dict[str, str] = field(default_factory=dict[str, str])
    trace: str = ""

    @classmethod
    def to(
        cls,
        pending: Iterable[Question],
        found: Mapping[OpenQuestion, tuple[JsonObject, int]],
    ) -> Answers:
        """Return the available answers to a thread's open questions.

        ``found`` has each answer, and how often the call's authorization was revoked.
        """
        answers = cls()
        for one in pending:
            question = question_of(one)
            if question is None or question not in found:
                continue
            answer, times = found[question]
            # After a revocation an equal answer is new, not refused.
            about = [question.kind, question.item_id, times]
            answers.ready[one.id] = answer
            answers.fingerprint[one.id] = json.dumps([*about, answer], sort_keys=True)
        return answers

    def without(self, sent: set[str]) -> Answers:
        """Return the answers that were not sent yet."""
        fresh = [one for one in self.ready if self.fingerprint[one] not in sent]
        return Answers(
            ready={one: self.ready[one] for one in fresh},
            fingerprint={one: self.fingerprint[one] for one in fresh},
            trace=self.trace,
        )


def question_of(pending: Question) -> OpenQuestion | None:
    """Read an open question; None for a question of another library."""
    given = pending.value
    if not isinstance(given, Mapping):
        return None
    value = cast("Mapping[str, object]", given)
    kind, item_id = value.get("type"), value.get("item_id")
    if kind not in {APPROVAL_INTERRUPT, RECONCILE_INTERRUPT}:
        return None
    if not isinstance(item_id, str):
        return None
    return OpenQuestion(
        kind="keyturn.approval" if kind == APPROVAL_INTERRUPT else "keyturn.reconcile",
        item_id=item_id,
        action_hash=str(value.get("action_hash", "")),
    )


def is_known(pending: Question) -> bool:
    """Return True if a dialect knows this question of another library."""
    return dialects.read(pending) is not None


def questions_of(pending: Iterable[Question]) -> tuple[OpenQuestion, ...]:
    """Return Keyturn's questions of a thread, each once."""
    questions = (question_of(one) for one in pending)
    return tuple(dict.fromkeys(one for one in questions if one is not None))


def asked_items(pending: Sequence[Question]) -> frozenset[str]:
    """Return the ids of the items that a thread still asks about."""
    return frozenset(one.item_id for one in questions_of(pending))


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
