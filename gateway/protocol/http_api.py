"""The HTTP API for agents: its operations.

An operation is one question of the port `Gateway` as JSON, sent by POST. The server and
the client read this one table, and the OpenAPI document is made of it, so that the
three cannot differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import NoneType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote

from pydantic import Field, TypeAdapter

from keyturn.gateway.protocol.approval_views import ApprovalView, ClauseView
from keyturn.gateway.protocol.records import (
    EditRecord,
    Person,
    Record,
    Result,
    RunRef,
    Tier,
)
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    AgentNote,
    CallBegun,
    CallEnd,
    CallOutcome,
    CallProgress,
    ClaimReply,
    ClaimRequest,
    EditsKnown,
    LateReport,
    Turn,
    TurnRef,
    Verdict,
)

LONGEST_WAIT_S = 60.0
"""How long a question may wait at most for its answer."""

MOST_QUESTIONS = 1000


class PendingCall(Record):
    """One call that waits for people, as a reviewer may see it.

    Attributes:
        item_id: names the call, also to `Keyturn.withdraw`.
        tool: what would run.
        args: with which arguments; what the policy redacts is hidden.
        description: what the policy says of it, else what the agent says, marked as
            its words; "" for nothing.
        agent: who asks, which may be an agent inside another one's tool.
        tier: what the call needs.
        channel: where its card is.
        opened_at: since when it waits (UTC).
        expires_at: until when people can decide (UTC); then it does not run.
    """

    item_id: str
    tool: str
    args: JsonObject
    description: str
    agent: str
    tier: Tier
    channel: str
    opened_at: datetime
    expires_at: datetime


class RunFacts(Record):
    """Who asked for a run, and where in Slack; they cannot approve what comes of it.

    ``channel`` and ``thread_ts`` are both given, or both empty.
    """

    run: RunRef
    requester: Person | None = None
    channel: str = ""
    thread_ts: str = ""


class RunQuestion(Record):
    """Ask about a run as a whole."""

    run: RunRef


class Withdrawal(Record):
    """End calls of a run that wait; without ``item_ids``, all that do."""

    run: RunRef
    item_ids: tuple[str, ...] | None = Field(default=None, max_length=MOST_QUESTIONS)


class OpenQuestion(Record):
    """One question that a thread asks: the value of its interrupt says all of it."""

    kind: Literal["keyturn.approval", "keyturn.reconcile"]
    item_id: str
    action_hash: str


class AnswersQuestion(Record):
    """Ask for the answers to a thread's open questions.

    ``wait_s`` is how long to wait for the first one; 0 does not wait.
    """

    run: RunRef
    questions: tuple[OpenQuestion, ...] = Field(max_length=MOST_QUESTIONS)
    wait_s: float = Field(default=0.0, ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)


class Answered(OpenQuestion):
    """One question and its answer, which resumes its interrupt.

    ``times`` counts how often an authorization was taken back: an answer that comes
    again with another number is a new one.
    """

    answer: JsonObject
    times: int = 0

    @property
    def question(self) -> OpenQuestion:
        """Return the question without its answer."""
        return OpenQuestion(
            kind=self.kind, item_id=self.item_id, action_hash=self.action_hash
        )


# The HTTP API for programs that run threads themselves: the right to run one.
#
# A process that has nothing but an API key brings its own threads forward. Beside what
# an agent asks (`keyturn.gateway.protocol.http_api`), it asks for the right to be the
# only one that runs a thread, and says where the thread stands.

MAX_FENCE = 2**53
_LEASE = re.compile(r"([0-9]{1,16}) ([0-9a-f]{32}) ([!-~]*) ([!-~]*)", re.ASCII)
"""Fence, token, agent and thread; the last two are quoted, as `LeaseRef.text` does."""

LeaseVerb = Literal["take", "keep", "renumber", "free"]
LeaseState = Literal["held", "busy", "lost", "free"]

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

    verb: LeaseVerb
    token: str = Token
    above: int = Field(default=0, ge=0, lt=MAX_FENCE)


class LeaseReply(Record):
    """How a lease stands: ``held`` by who asked, ``busy``, ``lost`` or ``free``.

    ``fence`` is the holder's number, ``name`` the one under which checkpoint databases
    know the lease, ``lease_s`` how long it lives unless it is kept.
    """

    state: LeaseState
    fence: int = 0
    name: str = ""
    lease_s: float = 0.0


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


class DecideQuestion(Record):
    """What a person says of one call, and what they saw of it.

    Attributes:
        call: id of the call; may be left out where the approval has only one.
        expected_version: of the approval, as it was read.
        action_hash: of the call, as it was read: what was shown is what is decided.
        decision: approve, edit, reject or respond.
        reason: why; the agent reads it.
        modified_args: for edit: the arguments with which the call runs instead.
        message: for respond: what the agent reads as the tool's answer.
        answers: for respond to a call that asks questions: one each, in order.
    """

    call: str = ""
    expected_version: int = Field(ge=1)
    action_hash: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    decision: Literal["approve", "edit", "reject", "respond"]
    reason: str = Field(default="", max_length=3000)
    modified_args: JsonObject | None = None
    message: str = Field(default="", max_length=3000)
    answers: tuple[str, ...] = Field(default=(), max_length=100)


class DecideReply(Record):
    """What became of a decision.

    ``decided``: it ended the call's wait. ``voted``: it counts, and ``need`` people in
    all have to say so, of whom there are ``have``; ``missing`` names the roles whose
    votes it lacks, also where there are enough people. ``again``: an approval that came
    very soon counts for nothing; the same once more counts.
    """

    outcome: Literal["decided", "voted", "again"]
    have: int = 0
    need: int = 0
    missing: tuple[ClauseView, ...] = ()
    approval: ApprovalView


BASE = "/v1"
MAX_BODY_BYTES = 4 * 1024 * 1024
"""What a request may have: 64 KiB for each of many calls, and their schemas."""

LEASE_HEADER = "Keyturn-Lease"
"""Names the lease on a thread under which a process asks, see `RemoteLease`."""

CLOCK_HEADER = "Keyturn-Clock-Ahead"
"""Says by how many seconds the clock of who asks is ahead, if it is not right."""

Q = TypeVar("Q")
A = TypeVar("A")


class Scope(StrEnum):
    """What an API key may do. No scope decides about a call: people do, in Slack.

    ``submit`` proposes calls and gives them up, ``read`` reads what became of them,
    ``execute`` runs what was approved.
    """

    SUBMIT = "submit"
    READ = "read"
    EXECUTE = "execute"


class Heartbeat(Record):
    """Keep a claim."""

    item_id: str
    fence: int


class Finish(Record):
    """Record what an execution came to."""

    item_id: str
    fence: int
    result: Result


class Release(Record):
    """Give a claim back."""

    item_id: str
    fence: int
    has_begun: bool = True


class History(Record):
    """Ask for the edits of a run, or of a conversation in it."""

    run: RunRef
    within: str = ""


class EditsQuestion(Record):
    """Ask which edits people really made; see `Gateway.edits_known`."""

    ref: TurnRef
    edits: dict[str, str] = Field(max_length=1000)


class LateReportsQuestion(Record):
    """Ask what executors reported late; see `Gateway.late_reports`."""

    ref: TurnRef
    item_ids: tuple[str, ...] = Field(max_length=1000)


class NoteQuestion(Record):
    """Ask what an agent's system prompt should say."""

    agent: str


@dataclass(frozen=True, eq=False)
class Operation(Generic[Q, A]):
    """One question and its answer.

    Attributes:
        name: of the operation, and of its method in the port.
        scope: what a key needs for it.
        question: reads and writes the body of the request.
        answer: reads and writes the body of the response.
    """

    name: str
    scope: Scope
    question: TypeAdapter[Q]
    answer: TypeAdapter[A]

    @property
    def path(self) -> str:
        """Return the path of the URL."""
        return f"{BASE}/{self.name.replace('_', '-')}"


OPERATIONS = list[Operation[Any, Any]]()
"""Every operation."""


def _operation(
    name: str, scope: Scope, question: type[Q], answer: type[A]
) -> Operation[Q, A]:
    made = Operation(name, scope, TypeAdapter(question), TypeAdapter(answer))
    OPERATIONS.append(made)
    return made


LEASE = _operation("thread_lease", Scope.EXECUTE, LeaseQuestion, LeaseReply)
SETTLE = _operation("settle", Scope.SUBMIT, SettleQuestion, NoneType)
SUBMIT = _operation("submit", Scope.SUBMIT, Turn, tuple[Verdict, ...])
CLAIM = _operation(
    "claim", Scope.EXECUTE, ClaimRequest, cast("type[ClaimReply]", ClaimReply)
)
HEARTBEAT = _operation("heartbeat", Scope.EXECUTE, Heartbeat, bool)
FINISH = _operation("finish", Scope.EXECUTE, Finish, bool)
RELEASE = _operation("release", Scope.EXECUTE, Release, NoneType)
REPORT_PROGRESS = _operation("report_progress", Scope.EXECUTE, CallProgress, CallBegun)
ENDED = _operation("ended", Scope.EXECUTE, CallEnd, NoneType)
OUTCOMES = _operation("outcomes", Scope.READ, TurnRef, tuple[CallOutcome, ...])
SUPERSEDE = _operation("supersede", Scope.SUBMIT, TurnRef, NoneType)
HISTORY = _operation("history", Scope.READ, History, tuple[EditRecord, ...])
EDITS_KNOWN = _operation("edits_known", Scope.READ, EditsQuestion, EditsKnown)
LATE_REPORTS = _operation(
    "late_reports", Scope.READ, LateReportsQuestion, tuple[LateReport, ...]
)
NOTE = _operation("note", Scope.READ, NoteQuestion, AgentNote)
REMEMBER = _operation("remember", Scope.SUBMIT, RunFacts, NoneType)
PENDING = _operation("pending", Scope.READ, RunQuestion, tuple[PendingCall, ...])
ANSWERS = _operation("answers", Scope.READ, AnswersQuestion, tuple[Answered, ...])
WITHDRAW = _operation("withdraw", Scope.SUBMIT, Withdrawal, tuple[str, ...])
SUPERSEDE_RUN = _operation("supersede_run", Scope.SUBMIT, RunQuestion, NoneType)
