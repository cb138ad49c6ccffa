"""The HTTP API for programs that run threads themselves: the right to run one.

A process that has nothing but an API key brings its own threads forward. Beside what
an agent asks (`twokey.gateway.protocol.http_api`), it asks for the right to be the only
one that runs a thread, and says where the thread stands.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote

from pydantic import Field, TypeAdapter

from twokey.gateway.protocol.http_api import Operation, Scope
from twokey.gateway.protocol.records import Record, RunRef

TAKE_LEASE_HEADER = "Twokey-Take-Lease"
"""Of a question for answers: a token, under which the gateway may take the lease on
the thread when there is an answer. An older gateway takes none."""

TAKEN_LEASE_HEADER = "Twokey-Taken-Lease"
"""Of its answer: the `TakenLease` that was taken; missing where none was."""

MAX_FENCE = 2**53
_LEASE = re.compile(r"([0-9]{1,16}) ([0-9a-f]{32}) ([!-~]*) ([!-~]*)", re.ASCII)
"""Fence, token, agent and thread; the last two are quoted, as `LeaseRef.text` does."""

Token = Field(pattern=r"^[0-9a-f]{32}$")


class ThreadQuestion(Record):
    """A question about one run: an agent and its thread."""

    run: RunRef


class LeaseQuestion(ThreadQuestion):
    """Take, keep, renumber or give back the right to run a thread.

    ``token`` is made by who asks and names one holder: the same one again is the same
    question, whose answer was lost. ``above`` is a fence that the checkpoint database
    knows, for ``renumber``; one far above the newest of the gateway is refused.
    """

    verb: Literal["take", "keep", "renumber", "free"]
    token: str = Token
    above: int = Field(default=0, ge=0, lt=MAX_FENCE)


class LeaseReply(Record):
    """How a lease stands: ``held`` by who asked, ``busy``, ``lost`` or ``free``.

    ``fence`` is the holder's number, ``name`` the one under which checkpoint databases
    know the lease, ``lease_s`` how long it lives unless it is kept.
    """

    state: Literal["held", "busy", "lost", "free"]
    fence: int = 0
    name: str = ""
    lease_s: float = 0.0


class TakenLease(Record):
    """A lease that was taken with an answer; see `LeaseReply`.

    ``waited_s`` is how long the question had been with the gateway by then.
    """

    fence: int
    name: str
    lease_s: float
    waited_s: float


class SettleQuestion(ThreadQuestion):
    """Say where a thread rests: what it still asks, and whether it has finished.

    What it does not ask about any more is ended, so that no card waits for ever.
    """

    asked: frozenset[str] = Field(max_length=1000)
    is_finished: bool = False


class LeaseRef(NamedTuple):
    """A lease under which a process asks, as it travels in a header."""

    run: RunRef
    token: str
    fence: int

    @property
    def text(self) -> str:
        """Return the value of the header."""
        names = (quote(one, safe="") for one in (self.run.agent, self.run.thread))
        return " ".join((str(self.fence), self.token, *names))


def read_lease(text: str) -> LeaseRef | None:
    """Read the header of a lease; None for what is none."""
    found = _LEASE.fullmatch(text)
    if found is None:
        return None
    try:
        # Strictly: half of a character is no part of a name, and no store takes it.
        agent, thread = (unquote(one, errors="strict") for one in found.group(3, 4))
    except UnicodeDecodeError:
        return None
    return LeaseRef(RunRef(agent=agent, thread=thread), found[2], int(found[1]))


LEASE = Operation(
    "thread_lease",
    Scope.EXECUTE,
    "Take, keep or give back the right to run a thread.",
    TypeAdapter(LeaseQuestion),
    TypeAdapter(LeaseReply),
)
SETTLE = Operation(
    "settle",
    Scope.SUBMIT,
    "Say what a resting thread asks; the rest of what waits in it is ended.",
    TypeAdapter(SettleQuestion),
    TypeAdapter(None),
)
THREAD_OPERATIONS: tuple[Operation[Any, Any], ...] = (
    LEASE,
    SETTLE,
)
