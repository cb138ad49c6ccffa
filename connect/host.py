"""Where agents are run by another program: its threads, questions and answers.

A host reads a thread's position and resumes it. `keyturn.connect.hand_over` does the
rest for every host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

from pydantic import JsonValue

from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.protocol.records import NotTaken


class HostUnavailable(KeyturnError):
    """The host did not answer: it is not known whether it got the request."""


class Outcome(Enum):
    """What became of an answer.

    ``REFUSED``: nothing has begun. ``FAILED``: the agent failed with it, at any point.
    ``LOST``: it was sent, and then its run or thread was deleted.
    """

    TAKEN = auto()
    ELSEWHERE = auto()
    DELETED = auto()
    REFUSED = auto()
    FAILED = auto()
    LOST = auto()


PROBLEMS: dict[Outcome, NotTaken] = {
    Outcome.TAKEN: "",
    Outcome.ELSEWHERE: "answered_elsewhere",
    Outcome.DELETED: "deleted",
    Outcome.REFUSED: "refused",
    Outcome.FAILED: "failed",
    Outcome.LOST: "failed",
}
"""Why an answer was not taken, in the words of the gateway."""


class Ending(NamedTuple):
    """How an answer ended, with the host's error."""

    outcome: Outcome
    detail: str = ""


class Waiting(NamedTuple):
    """A thread that may wait: its agent, and a text that changes with its state."""

    agent: str
    stamp: str


@dataclass(frozen=True)
class Position:
    """A thread at one moment.

    Attributes:
        thread: its id.
        questions: that are open.
        checkpoint: that they belong to.
        run: that made the checkpoint.
        assistant: of that run.
        may_ask_again: nothing else would run again if the thread asked again.
    """

    thread: str
    questions: tuple[Question, ...]
    checkpoint: str
    run: str
    assistant: str = ""
    may_ask_again: bool = False


class Claim(NamedTuple):
    """A claimed call, with the fencing token of its claim."""

    item_id: str
    fence: int


@dataclass(frozen=True)
class Sent:
    """A run that delivers answers.

    Attributes:
        thread: its thread.
        run: its id.
        marks: of the answers.
        claims: of the calls; they end the hand-over also after a crash.
        checkpoint: that the answers belong to.
        after: the newest run before; another one in between may have answered.
    """

    thread: str
    run: str
    marks: tuple[str, ...]
    claims: tuple[Claim, ...]
    checkpoint: str
    after: str


class Runs(NamedTuple):
    """The runs of a thread, newest first: their ids, and those with our marks."""

    ids: tuple[str, ...]
    ours: tuple[Sent, ...]

    @property
    def newest(self) -> str:
        """Return the id of the newest run; "" without one."""
        return self.ids[0] if self.ids else ""


class NotSent:
    """No run was made, because the thread is busy: try again."""


class Host(Protocol):
    """A program that runs agents by itself.

    Every method raises `HostUnavailable` when it does not answer.
    """

    name: str
    """Its name for people, such as "Agent Server crm"."""

    @property
    def agents(self) -> Collection[str]:
        """Return its agents, by their names in the policy."""
        ...

    async def waiting(self) -> Mapping[str, Waiting]:
        """Return the threads that may wait; only a hint."""
        ...

    async def read(self, thread: str) -> Position | None:
        """Return where a thread is; None when it is deleted."""
        ...

    async def runs(self, thread: str) -> Runs:
        """Return what was sent to a thread before."""
        ...

    async def send(
        self, at: Position, answers: Mapping[str, JsonValue], mark: Sent
    ) -> Sent | Ending | NotSent:
        """Resume a thread with answers by question id; ``mark`` has no run yet."""
        ...

    async def ask_again(self, at: Position, mark: Sent) -> Sent | Ending | NotSent:
        """Let a thread ask its questions again, with new ids; as `send`."""
        ...

    async def ending(self, sent: Sent, question: str) -> Ending | None:
        """Return how the answer to a question ended; None while that is open."""
        ...
