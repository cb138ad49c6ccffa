"""Agent runtime interface for the resume worker, and the open questions of threads.

A settings file names one graph for all threads of an agent. A program passes its graph
to each run, and two runs of one agent may use different graphs: tools with one user's
credentials, another model, another checkpointer. Such a graph serves only its own
thread, so no thread ever runs with another user's graph.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, UnknownType
from langgraph.checkpoint.base import BaseCheckpointSaver
from referencing import Registry
from referencing.exceptions import Unresolvable

from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.protocol.http_api import OpenQuestion
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import APPROVAL_INTERRUPT, RECONCILE_INTERRUPT


class AnswerRefused(KeyturnError):
    """The runtime refused an answer and saved nothing of it.

    Attributes:
        is_stale: True if the question is no longer open: read the thread again. False
            if the answer does not fit its question.
    """

    def __init__(self, problem: str, *, is_stale: bool) -> None:
        self.is_stale = is_stale
        super().__init__(problem)


@dataclass(frozen=True)
class PendingInterrupt:
    """One open question of a thread.

    ``schema`` is the JSON Schema for the answer, if the agent provided one.
    """

    id: str
    value: object
    schema: JsonObject | None = None


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
    """

    exists: bool
    pending: tuple[PendingInterrupt, ...] = ()
    has_tasks: bool = False
    is_cut_off: bool = False
    checkpoint: str = ""
    taken: str = ""
    final_message: str = ""

    @property
    def is_finished(self) -> bool:
        """Return True if no work and no question is left; ``next`` is unreliable."""
        return self.exists and not self.has_tasks and not self.pending


@dataclass(frozen=True)
class ThreadChange:
    """A thread may have advanced; ``error`` is set if its run was given up."""

    agent: str
    thread: str
    error: BaseException | None = None


class Runner(Protocol):
    """One agent in one runtime. The caller has the thread's lease throughout."""

    async def probe(self, thread: str) -> ThreadState:
        """Read the state of a thread."""
        ...

    async def has_taken(self, thread: str, key: str) -> bool:
        """Return True if this key ever started the thread.

        A message may be delivered again after later messages.
        """
        ...

    async def start(self, thread: str, text: str, *, key: str) -> None:
        """Give a thread a person's message and run until it rests.

        ``key`` is saved with the thread, see `has_taken`, so that a repeated delivery
        does not repeat the message.
        """
        ...

    async def resume(
        self, thread: str, answers: Mapping[str, JsonObject], *, key: str
    ) -> None:
        """Answer open questions by interrupt id and run until the thread rests.

        ``key`` is the thread's `ThreadState.taken`, which is kept.

        Raises:
            AnswerRefused: a question is not open, or an answer does not fit.
        """
        ...

    async def nudge(self, thread: str, *, key: str) -> None:
        """Continue an interrupted thread; open questions are asked again.

        ``key`` is the thread's `ThreadState.taken`, which is kept.
        """
        ...


MAX_LEFT = 100_000
"""Number of threads remembered as ended or as resumed by the program. The oldest are
forgotten; jobs for them are then put back instead of acknowledged.
"""


class Runners:
    """The runners of agents and of single threads; a thread's runner takes precedence.

    Args:
        agents: agent name to the runner of all its threads; may change later.
        saver: the checkpoints of those agents.
    """

    def __init__(
        self, agents: Mapping[str, Runner], saver: BaseCheckpointSaver[Any]
    ) -> None:
        self.saver = saver
        self._agents = agents
        self._threads: dict[tuple[str, str], Runner] = {}
        # True: the thread has ended. False: the program resumes it itself.
        self._left: dict[tuple[str, str], bool] = {}

    def keep(self, agent: str, thread: str, runner: Runner) -> None:
        """Run this thread with this runner from now on; the last runner counts.

        The caller has the thread's lease, here and in `release`: otherwise the end of
        one turn could release the runner of the next turn.
        """
        self._threads[agent, thread] = runner

    def release(self, agent: str, thread: str) -> None:
        """Forget the runner of a thread that has ended."""
        self._threads.pop((agent, thread), None)
        self.leave(agent, thread, has_ended=True)

    def leave(self, agent: str, thread: str, *, has_ended: bool = False) -> None:
        """Leave a thread to the program, which resumes it unless it has ended."""
        # Removed first: a key that is set again would keep its old place in the order.
        self._left.pop((agent, thread), None)
        self._left[agent, thread] = has_ended
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]

    def has_ended(self, agent: str, thread: str) -> bool | None:
        """Return True if the thread ended in this process, which no longer runs it.

        Another process may have begun another turn since then. False if the program
        resumes the thread itself; None if a runner here resumes it, or if unknown.
        """
        if self.of(agent, thread) is not None:
            return None
        return self._left.get((agent, thread))

    def of(self, agent: str, thread: str) -> Runner | None:
        """Return the runner of a thread; None if this process does not run it."""
        return self._threads.get((agent, thread)) or self._agents.get(agent)

    def is_of_a_program(self, agent: str, thread: str) -> bool:
        """Return True if a program in this process runs this thread itself."""
        return (agent, thread) in self._threads

    @property
    def agents(self) -> tuple[str, ...]:
        """Return the names of the agents whose threads all run here."""
        return tuple(self._agents)

    def serves(self, agent: str) -> bool:
        """Return True if this process runs every thread of an agent."""
        return agent in self._agents


_NO_SCHEMA = (
    AttributeError,
    KeyError,
    RecursionError,
    SchemaError,
    TypeError,
    UnknownType,
    Unresolvable,
    ValueError,
)
"""Exceptions of a validator for a value that is not a schema."""


@dataclass
class Answers:
    """Answers that can be sent now, by interrupt id.

    ``fingerprint`` depends on the answer and its item, not on the interrupt's id: a
    repeated question with the same fingerprint means that its answer was refused.
    ``unfit`` are items whose answer the agent's own schema would refuse. One bad answer
    in a map raises after the good ones have run, so it is never sent.
    """

    ready: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    fingerprint: dict[str, str] = field(default_factory=dict[str, str])
    unfit: list[str] = field(default_factory=list[str])

    @classmethod
    def to(
        cls,
        pending: Iterable[PendingInterrupt],
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
            if not fits(answer, one.schema):
                answers.unfit.append(question.item_id)
                continue
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
            unfit=self.unfit,
        )


def question_of(pending: PendingInterrupt) -> OpenQuestion | None:
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


def questions_of(pending: Iterable[PendingInterrupt]) -> tuple[OpenQuestion, ...]:
    """Return Keyturn's questions of a thread, each once."""
    questions = (question_of(one) for one in pending)
    return tuple(dict.fromkeys(one for one in questions if one is not None))


def asked_items(pending: Sequence[PendingInterrupt]) -> frozenset[str]:
    """Return the ids of the items that a thread still asks about."""
    return frozenset(one.item_id for one in questions_of(pending))


def fits(answer: JsonObject, schema: JsonObject | None) -> bool:
    """Return True if the agent's schema accepts an answer.

    The schema itself is not checked first, because that is the most expensive step. An
    invalid schema leaves the check to the agent. An empty registry prevents a schema
    from fetching anything.
    """
    if schema is None:
        return True
    validator: Any = Draft202012Validator(schema, registry=Registry())
    try:
        return bool(validator.is_valid(answer))
    except _NO_SCHEMA:
        return True
