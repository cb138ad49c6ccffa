"""The interface to a program that runs agents: its threads, questions and answers.

A `Host` reads a thread's position and resumes the thread. `keyturn.connect.hand_over`
does the rest for every host.
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
    """The host did not answer; it may have received the request."""


class Outcome(Enum):
    """The end of an answer.

    ``REFUSED``: nothing has begun. ``FAILED``: the agent failed with the answer, at any
    point. ``LOST``: the run or the thread was deleted after the answer was sent.
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
"""The gateway's problem for each outcome; "" if the answer was taken."""


class Ending(NamedTuple):
    """The outcome of an answer, with the host's error."""

    outcome: Outcome
    detail: str = ""


class Waiting(NamedTuple):
    """A thread that may wait: its agent, and a stamp that changes with its state."""

    agent: str
    stamp: str


@dataclass(frozen=True)
class Position:
    """A thread at one moment.

    Attributes:
        thread: id of the thread.
        questions: the open questions.
        checkpoint: id of the checkpoint with these questions.
        run: id of the run that made the checkpoint.
        assistant: id of that run's assistant.
        may_ask_again: asking again would repeat no other work.
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
        thread: id of the thread.
        run: id of the run; "" before it is sent.
        marks: the marks of the answers.
        claims: the claims of the calls, to end the hand-over after a crash.
        checkpoint: id of the checkpoint with the answered questions.
        after: id of the newest run before; a run in between may have answered.
    """

    thread: str
    run: str
    marks: tuple[str, ...]
    claims: tuple[Claim, ...]
    checkpoint: str
    after: str


class Runs(NamedTuple):
    """The runs of a thread, newest first: all ids, and the runs with marks."""

    ids: tuple[str, ...]
    ours: tuple[Sent, ...]

    @property
    def newest(self) -> str:
        """Return the id of the newest run; "" if there is none."""
        return self.ids[0] if self.ids else ""


class NotSent:
    """The thread is busy, so no run was made: try again."""


class Host(Protocol):
    """A program that runs agents by itself.

    Every method raises `HostUnavailable` when the program does not answer.
    """

    name: str
    """The program's name for people, such as "Agent Server crm"."""

    @property
    def agents(self) -> Collection[str]:
        """Return the names of the program's agents in the policy."""
        ...

    async def waiting(self) -> Mapping[str, Waiting]:
        """Return the threads that may wait, by id; `read` decides."""
        ...

    async def read(self, thread: str) -> Position | None:
        """Return the position of a thread; None if it is deleted."""
        ...

    async def runs(self, thread: str) -> Runs:
        """Return the runs of a thread, with earlier answers."""
        ...

    async def send(
        self, at: Position, answers: Mapping[str, JsonValue], mark: Sent
    ) -> Sent | Ending | NotSent:
        """Resume a thread with answers by question id; ``mark`` has no run yet."""
        ...

    async def ask_again(self, at: Position, mark: Sent) -> Sent | Ending | NotSent:
        """Make a thread ask its questions again, with new ids; returns as `send`."""
        ...

    async def ending(self, sent: Sent, question: str) -> Ending | None:
        """Return the end of the answer to a question; None while it is unknown."""
        ...
