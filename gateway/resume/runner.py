"""Agent runtime interface that the resume worker needs; adapters implement it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from twokey.gateway.errors import TwokeyError
from twokey.gateway.protocol.strict_json import JsonObject


class AnswerRefused(TwokeyError):
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
