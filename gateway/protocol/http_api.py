"""The gateway's interface for agents, and its operations over HTTP.

The in-process gateway and the HTTP client of a gateway in another process implement the
port `Gateway`. Every method may be called from any event loop. An operation is one
request of the port as JSON, sent by POST. Server, client and OpenAPI document all use
this one table, so they cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from types import NoneType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import quote, unquote

from pydantic import Field, TypeAdapter

from keyturn.gateway.arguments import check_tool_names, require
from keyturn.gateway.protocol import BASE
from keyturn.gateway.protocol.approval_views import ApprovalView, ClauseView
from keyturn.gateway.protocol.records import (
    EditRecord,
    Person,
    Record,
    Result,
    RunRef,
    Tier,
)
from keyturn.gateway.protocol.run_context import excepting, in_run
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    AgentNote,
    AskedAgain,
    CallBegun,
    CallEnd,
    CallOutcome,
    CallProgress,
    ClaimReply,
    ClaimRequest,
    EditsKnown,
    HandOverEnd,
    LateReport,
    ReportedOutcome,
    Turn,
    TurnRef,
    Verdict,
)

LONGEST_WAIT_S = 60.0
"""Longest time that a request may wait for its answer."""

MOST_QUESTIONS = 1000

MAX_ATTENDANCE_S = 24 * 3600.0


class PendingCall(Record):
    """One waiting call, as shown to reviewers.

    Attributes:
        item_id: id of the call, also for `Keyturn.withdraw`.
        tool: the tool that would run.
        args: its arguments; values that the policy redacts are hidden.
        description: the policy's description, or else the agent's, marked as its words;
            "" for none.
        agent: the agent that asks; it may be inside a tool of another agent.
        tier: tier of the call.
        channel: channel of its card.
        opened_at: start of the wait (UTC).
        expires_at: end of the time to decide (UTC); afterwards it does not run.
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


class RunQuestion(Record):
    """A question about one run: an agent and its thread."""

    run: RunRef


class RunFacts(RunQuestion):
    """Requester and Slack place of a run; the requester cannot approve its calls.

    ``channel`` and ``thread_ts`` are both set, or both empty.
    """

    requester: Person | None = None
    channel: str = ""
    thread_ts: str = ""


class Withdrawal(RunQuestion):
    """Withdraw waiting calls of a run; all of them without ``item_ids``."""

    item_ids: tuple[str, ...] | None = Field(default=None, max_length=MOST_QUESTIONS)


QuestionKind = Literal["keyturn.approval", "keyturn.reconcile"]


class OpenQuestion(Record):
    """One open question of a thread, with the fields of its interrupt's value."""

    kind: QuestionKind
    item_id: str
    action_hash: str

    @classmethod
    def about(
        cls, call: Verdict, kind: QuestionKind = "keyturn.approval"
    ) -> OpenQuestion:
        """Return the question about a call that people decide."""
        return cls(kind=kind, item_id=call.item_id, action_hash=call.action_hash)


class AnswersQuestion(RunQuestion):
    """Ask for the answers to a thread's open questions.

    ``wait_s`` is how long to wait for the first one; 0 does not wait.
    """

    questions: tuple[OpenQuestion, ...] = Field(max_length=MOST_QUESTIONS)
    wait_s: float = Field(default=0.0, ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)


class Answered(OpenQuestion):
    """One question and its answer, which resumes its interrupt.

    ``times`` counts how often the authorization was taken back: the same answer with
    another number is a new answer.
    """

    answer: JsonObject
    times: int = 0

    @property
    def question(self) -> OpenQuestion:
        """Return the question without its answer."""
        return OpenQuestion(
            kind=self.kind, item_id=self.item_id, action_hash=self.action_hash
        )


# The HTTP API for programs that run threads themselves: the right to run a thread.
#
# A process with only an API key resumes its own threads. It uses the operations of
# agents, and also requests the exclusive right to run a thread and reports its open
# questions.

MAX_FENCE = 2**53
_LEASE = re.compile(r"([0-9]{1,16}) ([0-9a-f]{32}) ([!-~]*) ([!-~]*)", re.ASCII)
"""Fence, token, agent and thread; the last two are quoted, as `LeaseRef.text` does."""

LeaseVerb = Literal["take", "keep", "renumber", "free"]
LeaseState = Literal["held", "busy", "lost", "free"]

Token = Field(pattern=r"^[0-9a-f]{32}$")


class LeaseQuestion(RunQuestion):
    """Take, keep, renumber or free the right to run a thread.

    The client chooses ``token``, which names one holder. A request with the same token
    is a retry whose first answer was lost. ``above`` is a fence stored in the
    checkpoint database, for ``renumber``. It is refused if it is far above the newest
    fence of the gateway.
    """

    verb: LeaseVerb
    token: str = Token
    above: int = Field(default=0, ge=0, lt=MAX_FENCE)


class LeaseReply(Record):
    """State of a lease: ``held`` by the client, ``busy``, ``lost`` or ``free``.

    ``fence`` is the holder's number. ``name`` is the name of the lease in checkpoint
    databases. ``lease_s`` is its lifetime unless it is kept.
    """

    state: LeaseState
    fence: int = 0
    name: str = ""
    lease_s: float = 0.0


class SettleQuestion(RunQuestion):
    """Report the open questions of a paused thread, and whether it has finished.

    Calls without an open question are ended, so that no card waits for ever.
    """

    asked: frozenset[str] = Field(max_length=1000)
    is_finished: bool = False


class LeaseRef(NamedTuple):
    """The lease under which a process sends requests, as the value of a header."""

    run: RunRef
    token: str
    fence: int

    @property
    def text(self) -> str:
        """Return the value of the header."""
        names = (quote(one, safe="") for one in (self.run.agent, self.run.thread))
        return " ".join((str(self.fence), self.token, *names))


def read_lease(text: str) -> LeaseRef | None:
    """Parse the header of a lease; None if it is invalid."""
    found = _LEASE.fullmatch(text)
    if found is None:
        return None
    try:
        # Strictly: no name contains half of a character, and no store accepts it.
        agent, thread = (unquote(one, errors="strict") for one in found.group(3, 4))
    except UnicodeDecodeError:
        return None
    return LeaseRef(RunRef(agent=agent, thread=thread), found[2], int(found[1]))


class DecideQuestion(Record):
    """A person's decision on one call, with the version they saw.

    Attributes:
        call: id of the call; optional if the approval has only one.
        expected_version: version of the approval that was read.
        action_hash: hash of the call that was read: only the shown action is decided.
        decision: approve, edit, reject or respond.
        reason: the reason; the agent reads it.
        modified_args: for edit: the new arguments of the call.
        message: for respond: the text that the agent reads as the tool's answer.
        answers: for respond to a call that asks questions: one for each, in order.
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
    """Outcome of a decision.

    ``decided``: it ended the call's wait. ``voted``: it counts, and ``have`` of
    ``need`` people have approved. ``missing`` lists the roles without enough votes,
    also if there are enough people. ``again``: an approval that came very soon does not
    count; the same approval once more counts.
    """

    outcome: Literal["decided", "voted", "again"]
    have: int = 0
    need: int = 0
    missing: tuple[ClauseView, ...] = ()
    approval: ApprovalView


MAX_BODY_BYTES = 4 * 1024 * 1024
"""Largest body: 64 KiB for each of many calls, and their schemas."""

LEASE_HEADER = "Keyturn-Lease"
"""Lease on the thread under which a process sends a request, see `LeaseRef`."""

CLOCK_HEADER = "Keyturn-Clock-Ahead"
"""Seconds by which the client's clock is ahead, if it is not right."""

Q = TypeVar("Q")
A = TypeVar("A")


class Scope(StrEnum):
    """Permission of an API key. No scope decides on a call; only people do, in Slack.

    ``submit`` proposes and withdraws calls, ``read`` reads their outcomes, ``execute``
    runs approved calls.
    """

    SUBMIT = "submit"
    READ = "read"
    EXECUTE = "execute"


class ClaimedCall(Record):
    """A claimed call, with the fencing token of its claim."""

    item_id: str
    fence: int


class Finish(ClaimedCall):
    """Record the result of an execution."""

    result: Result


class Release(ClaimedCall):
    """Give a claim back."""

    has_begun: bool = True


class Attendance(Record):
    """Report for how long a caller waits for a call from now on; 0: it has gone.

    ``joins`` is for another caller than before: it gets the call only if the earlier
    one has gone.
    """

    item_id: str
    wait_s: float = Field(ge=0, le=MAX_ATTENDANCE_S, allow_inf_nan=False)
    joins: bool = False


class Attended(Record):
    """Whether the caller has the call, and the address of its card; "" if unknown."""

    has_call: bool = False
    card_url: str = ""


class History(RunQuestion):
    """Ask for the edits of a run, or of a conversation in it."""

    within: str = ""


class EditsQuestion(Record):
    """Ask which edits were really made by people; see `Gateway.edits_known`."""

    ref: TurnRef
    edits: dict[str, str] = Field(max_length=1000)


class LateReportsQuestion(Record):
    """Ask for late reports of executors; see `Gateway.late_reports`."""

    ref: TurnRef
    item_ids: tuple[str, ...] = Field(max_length=1000)


DEFINITIONS_TOOL = "keyturn_definitions"
"""Tool of a call by which people approve definitions of another server's tools.

Its arguments are `DefinitionsToApprove`; policies may have a rule for it.
"""


class DefinitionsToApprove(Record):
    """Definitions of tools of a server that are new or changed.

    ``replaces`` has the approved definition of each changed tool, for reviewers.
    """

    server: str = Field(min_length=1, max_length=200)
    tools: dict[str, JsonObject] = Field(min_length=1)
    replaces: dict[str, JsonObject] = Field(default_factory=dict[str, JsonObject])


class DefinitionsQuestion(Record):
    """Ask which definitions of a server's tools are approved for an agent."""

    agent: str
    server: str = Field(min_length=1, max_length=200)


class Definitions(Record):
    """The approved definitions of a server's tools, by name.

    ``version`` rises with every approval; 0 before the first.
    """

    version: int = 0
    tools: dict[str, JsonObject] = Field(default_factory=dict[str, JsonObject])


class NoteQuestion(Record):
    """Ask for the text about an agent's gate in its system prompt."""

    agent: str


@dataclass(frozen=True, eq=False)
class Operation(Generic[Q, A]):
    """One operation: a question and its answer.

    Attributes:
        name: name of the operation, and of its method in the port.
        scope: the scope that a key needs.
        question_type: type of the body of the request.
        answer_type: type of the body of the response.
    """

    name: str
    scope: Scope
    question_type: type[Q]
    answer_type: type[A]

    # Each is made at its first use: a process uses few of the operations.

    @cached_property
    def question(self) -> TypeAdapter[Q]:
        """Reads and writes the body of the request."""
        return TypeAdapter(self.question_type)

    @cached_property
    def answer(self) -> TypeAdapter[A]:
        """Reads and writes the body of the response."""
        return TypeAdapter(self.answer_type)

    @property
    def path(self) -> str:
        """Return the path of the URL."""
        return f"{BASE}/{self.name.replace('_', '-')}"


OPERATIONS = list[Operation[Any, Any]]()
"""Every operation."""


def _operation(
    name: str, scope: Scope, question: type[Q], answer: type[A]
) -> Operation[Q, A]:
    made = Operation(name, scope, question, answer)
    OPERATIONS.append(made)
    return made


LEASE = _operation("thread_lease", Scope.EXECUTE, LeaseQuestion, LeaseReply)
SETTLE = _operation("settle", Scope.SUBMIT, SettleQuestion, NoneType)
SUBMIT = _operation("submit", Scope.SUBMIT, Turn, tuple[Verdict, ...])
CLAIM = _operation(
    "claim", Scope.EXECUTE, ClaimRequest, cast("type[ClaimReply]", ClaimReply)
)
HEARTBEAT = _operation("heartbeat", Scope.EXECUTE, ClaimedCall, bool)
FINISH = _operation("finish", Scope.EXECUTE, Finish, bool)
HAND_OVER = _operation("hand_over", Scope.EXECUTE, HandOverEnd, bool)
REPORT_OUTCOME = _operation("report_outcome", Scope.EXECUTE, ReportedOutcome, bool)
REPORT_ASKED_AGAIN = _operation("report_asked_again", Scope.EXECUTE, AskedAgain, bool)
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
DEFINITIONS = _operation("definitions", Scope.READ, DefinitionsQuestion, Definitions)
KEEP_DEFINITIONS = _operation("keep_definitions", Scope.EXECUTE, ClaimedCall, bool)
NOTE = _operation("note", Scope.READ, NoteQuestion, AgentNote)
REMEMBER = _operation("remember", Scope.SUBMIT, RunFacts, NoneType)
PENDING = _operation("pending", Scope.READ, RunQuestion, tuple[PendingCall, ...])
ANSWERS = _operation("answers", Scope.READ, AnswersQuestion, tuple[Answered, ...])
ATTEND = _operation("attend", Scope.EXECUTE, Attendance, Attended)
WITHDRAW = _operation("withdraw", Scope.SUBMIT, Withdrawal, tuple[str, ...])
SUPERSEDE_RUN = _operation("supersede_run", Scope.SUBMIT, RunQuestion, NoneType)


class Gateway(Protocol):
    """The gateway's interface for agents.

    Every method raises `keyturn.gateway.errors.KeyturnError` when the gateway cannot
    answer; the caller then refuses to run the tool.
    """

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        """Evaluate all calls of a turn at once; open approvals for those that wait.

        Idempotent by the turn's ref: the same turn submitted again gets the same
        verdicts. Waiting calls of the agent's older turns, and inside its tools, are
        superseded.
        """
        ...

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """Ask for the right to execute an authorized call once."""
        ...

    async def heartbeat(self, item_id: str, fence: int) -> bool:
        """Keep a claim; return False when the caller has lost it."""
        ...

    async def finish(self, item_id: str, fence: int, result: Result) -> bool:
        """Record the result of an execution; return False when the claim is lost."""
        ...

    async def release(
        self, item_id: str, fence: int, *, has_begun: bool = True
    ) -> None:
        """Give a claim back unused, for a pause inside the tool.

        ``has_begun`` is False if the tool was not begun; this attempt then does not
        extend the authorization.
        """
        ...

    def keeps_calls(self) -> bool:
        """Return whether calls without a record need `report_progress` in this context.

        True under a lease that decides on them. If False, each of them may run as often
        as its agent runs it.
        """
        ...

    async def report_progress(self, progress: CallProgress) -> CallBegun:
        """Ask to run a call without a record, or report a step of one."""
        ...

    async def ended(self, end: CallEnd) -> None:
        """Report how a call without a record ended."""
        ...

    async def outcomes(self, ref: TurnRef) -> tuple[CallOutcome, ...]:
        """Return the outcomes of the held calls of a message.

        The message may belong to another agent, because agents share messages: then the
        whole run is searched for the calls.
        """
        ...

    async def supersede(self, ref: TurnRef) -> None:
        """Supersede waiting calls of this turn and inside it: the thread moved on.

        For another agent's message, waiting calls of that agent's turn are superseded.
        """
        ...

    async def history(self, run: RunRef, within: str = "") -> tuple[EditRecord, ...]:
        """Return the edits of those calls of a run that ran, oldest first.

        It is bounded: older edits are known from the messages about them.

        Args:
            run: the run.
            within: namespace of a conversation; only its calls and calls inside it
                count.
        """
        ...

    async def edits_known(self, ref: TurnRef, edits: Mapping[str, str]) -> EditsKnown:
        """Return the recorded edits of a run, which people really made.

        Args:
            ref: the agent that asks, about its calls and those inside its tools; the
                message is ignored. Edits of other threads, and of other agents with a
                thread of the same name, are not returned.
            edits: hash of an edit record (`keyturn.gateway.protocol.edits.edit_hash`)
                to the id of its item, a blank, and the seal of the record.
        """
        ...

    async def late_reports(
        self, ref: TurnRef, item_ids: Collection[str]
    ) -> tuple[LateReport, ...]:
        """Return reports of executors that came after people reconciled these calls.

        Only calls of the ref's run are included.
        """
        ...

    async def note(self, agent: str) -> AgentNote:
        """Return the tools to name in the system prompt, for this agent's gate."""
        ...


class HandingGateway(Gateway, Protocol):
    """A gateway that records how hand-overs to other programs end."""

    async def hand_over(self, end: HandOverEnd) -> bool:
        """Record the end of a hand-over; return False if the claim is lost.

        It replaces `finish` for a claimed call of a turn with ``handed_to``.
        """
        ...

    async def report_asked_again(self, report: AskedAgain) -> bool:
        """Record that an agent asked again as a person wanted, or why it could not.

        Returns False if no person wanted the call to be asked again.
        """
        ...


def check_gateway(gateway: object) -> None:
    """Check a gateway argument; None means the `connected` one or one set elsewhere.

    Raises:
        SettingsError: when it is not a gateway.
    """
    require(
        gateway is None
        or (
            not isinstance(gateway, type)
            and all(callable(getattr(gateway, one, None)) for one in _ASKED)
        ),
        "gateway",
        gateway,
        "give the URL of one as text, 'https://…', or `gateway` of Keyturn.remote(…), "
        "or `service` of Keyturn(…)",
    )


_ASKED = ("submit", "claim", "finish")

_current: ContextVar[Gateway | None] = ContextVar("keyturn_gateway", default=None)


@contextmanager
def connected(
    gateway: Gateway, run: RunRef | None = None, *, ungated: Collection[str] = ()
) -> Generator[None]:
    """Make a gateway the default for middleware in this context.

    ``run`` is the run of all agents inside the block; if None, each agent finds its
    run. ``ungated`` names the tools that those agents may start without a gate.
    """
    check_gateway(gateway)
    check_tool_names("ungated", ungated)
    token = _current.set(gateway)
    try:
        with in_run(run), excepting(ungated):
            yield
    finally:
        _current.reset(token)


def connected_gateway() -> Gateway | None:
    """Return the gateway of this context, or None."""
    return _current.get()
