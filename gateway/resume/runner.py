"""Agent runtime interface that the resume worker needs, and who runs which thread.

A settings file names one graph for all threads of an agent. A program gives its graph
with each run, and two runs of one agent may be given different graphs: tools that hold
one user's credentials, another model, another checkpointer. Such a graph serves only
the thread it was given for, so that no thread is ever run with another user's graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from langgraph.checkpoint.base import BaseCheckpointSaver

from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.protocol.strict_json import JsonObject


class AnswerRefused(KeyturnError):
    """The runtime did not take an answer; nothing was saved of the refused one.

    Attributes:
        is_stale: the question is no longer open: read the thread again. False means
            that the answer itself does not fit its question.
    """

    def __init__(self, problem: str, *, is_stale: bool) -> None:
        self.is_stale = is_stale
        super().__init__(problem)


@dataclass(frozen=True)
class PendingInterrupt:
    """One open question of a thread.

    ``schema`` is the JSON Schema that an answer has to fit, when the agent gave one.
    """

    id: str
    value: object
    schema: JsonObject | None = None


@dataclass(frozen=True)
class ThreadState:
    """Where a thread stands, read from its checkpoint.

    Attributes:
        exists: a thread without any checkpoint must never be resumed.
        pending: its open questions.
        has_tasks: work is left, whatever it waits for.
        is_cut_off: some of that work waits for no answer: its process died, it raised,
            or it stands at a breakpoint. Other work may ask questions beside it.
        checkpoint: id of the checkpoint that was read.
        taken: key of the last input that the thread was started with.
        final_message: what the agent said last in this turn, as text.
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
        """Return whether nothing is left to do; the runtime's own ``next`` lies."""
        return self.exists and not self.has_tasks and not self.pending


class Runner(Protocol):
    """One agent in one runtime. The caller holds the thread's lease throughout."""

    async def probe(self, thread: str) -> ThreadState:
        """Read where a thread stands."""
        ...

    async def has_taken(self, thread: str, key: str) -> bool:
        """Return True if a thread was started with this key, now or ever before.

        A message may be delivered again after the thread was given others.
        """
        ...

    async def start(self, thread: str, text: str, *, key: str) -> None:
        """Give a thread a person's message and run until it rests.

        ``key`` is kept with the thread, see `has_taken`, so that a message that is
        delivered twice is given once.
        """
        ...

    async def resume(
        self, thread: str, answers: Mapping[str, JsonObject], *, key: str
    ) -> None:
        """Answer open questions by interrupt id and run until the thread rests.

        ``key`` is what `ThreadState.taken` was, and is kept.

        Raises:
            AnswerRefused: when one of them is not open or the answer does not fit.
        """
        ...

    async def nudge(self, thread: str, *, key: str) -> None:
        """Go on with a thread that was cut off; open questions are asked again.

        ``key`` is what `ThreadState.taken` was, and is kept.
        """
        ...


MAX_LEFT = 100_000
"""Threads that are remembered as ended, or as resumed by the program; the oldest are
forgotten, and jobs about them are then put back instead of acknowledged."""


class Runners:
    """The runners of agents, and those of single threads, which come first.

    Args:
        agents: agent name to the runner of all its threads; may change later.
        saver: the checkpoints of those agents; None when nobody knows.
    """

    def __init__(
        self,
        agents: Mapping[str, Runner] | None = None,
        saver: BaseCheckpointSaver[Any] | None = None,
    ) -> None:
        self.saver = saver
        self._agents: Mapping[str, Runner] = {} if agents is None else agents
        self._threads: dict[tuple[str, str], Runner] = {}
        # Whether it ended; else the program resumes it by itself.
        self._left: dict[tuple[str, str], bool] = {}

    def serve(self, agents: Mapping[str, Runner]) -> None:
        """Run every thread of these agents, unless it has a runner of its own."""
        self._agents = {**self._agents, **agents}

    def keep(self, agent: str, thread: str, runner: Runner) -> None:
        """Run this thread with this runner from now on; the last one given counts.

        The caller holds the thread's lease, here and in `release`: otherwise the end
        of one turn could release the runner that the next turn was given.
        """
        self._threads[agent, thread] = runner

    def release(self, agent: str, thread: str) -> None:
        """Forget the runner of a thread that has ended."""
        self._threads.pop((agent, thread), None)
        self._remember(agent, thread, has_ended=True)

    def leave(self, agent: str, thread: str) -> None:
        """Leave a thread to the program that resumes it by itself."""
        self._remember(agent, thread, has_ended=False)

    def is_left(self, agent: str, thread: str) -> bool:
        """Return True if the program resumes this thread by itself."""
        return self._how(agent, thread) is False

    def has_ended(self, agent: str, thread: str) -> bool:
        """Return True if this process saw the thread end, and runs it no more.

        Another process may have begun another turn of it since.
        """
        return self._how(agent, thread) is True

    def _how(self, agent: str, thread: str) -> bool | None:
        if self.of(agent, thread) is not None:
            return None
        return self._left.get((agent, thread))

    def _remember(self, agent: str, thread: str, *, has_ended: bool) -> None:
        # Removed first: a key that is set again would keep its old place in the order.
        self._left.pop((agent, thread), None)
        self._left[agent, thread] = has_ended
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]

    def of(self, agent: str, thread: str) -> Runner | None:
        """Return what runs a thread; None when this process does not run it."""
        return self._threads.get((agent, thread)) or self._agents.get(agent)

    def is_of_a_program(self, agent: str, thread: str) -> bool:
        """Return True if a program of this process runs this thread by itself."""
        return (agent, thread) in self._threads

    def names(self) -> frozenset[str]:
        """Return the agents of which this process runs any thread."""
        return frozenset({*self._agents, *(agent for agent, _ in self._threads)})

    @property
    def agents(self) -> tuple[str, ...]:
        """Return the names of the agents whose threads are all run here."""
        return tuple(self._agents)

    def serves(self, agent: str) -> bool:
        """Return True if this process runs every thread of an agent."""
        return agent in self._agents
