"""The HTTP API for agents: its operations.

An operation is one question of the port `Gateway` as JSON, sent by POST. The server and
the client read this one table, and the OpenAPI document is made of it, so that the
three cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pydantic import Field, TypeAdapter

from twokey.gateway.protocol.call_progress import CallBegun, CallEnd, CallProgress
from twokey.gateway.protocol.records import EditRecord, Record, Result, RunRef
from twokey.gateway.protocol.remote_runs import (
    Answered,
    AnswersQuestion,
    PendingCall,
    RunFacts,
    RunQuestion,
    Withdrawal,
)
from twokey.gateway.protocol.wire import (
    AgentNote,
    CallOutcome,
    ClaimReply,
    ClaimRequest,
    EditsKnown,
    LateReport,
    Turn,
    TurnRef,
    Verdict,
)

BASE = "/v1"
MAX_BODY_BYTES = 4 * 1024 * 1024
"""What a request may have: 64 KiB for each of many calls, and their schemas."""

LEASE_HEADER = "Twokey-Lease"
"""Names the lease on a thread under which a process asks, see `RemoteLease`."""

CLOCK_HEADER = "Twokey-Clock-Ahead"
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
        summary: a line for the documentation.
        question: reads and writes the body of the request.
        answer: reads and writes the body of the response.
    """

    name: str
    scope: Scope
    summary: str
    question: TypeAdapter[Q]
    answer: TypeAdapter[A]

    @property
    def path(self) -> str:
        """Return the path of the URL."""
        return f"{BASE}/{self.name.replace('_', '-')}"


SUBMIT = Operation(
    "submit",
    Scope.SUBMIT,
    "Evaluate the calls of a turn, and ask people about those that wait.",
    TypeAdapter(Turn),
    TypeAdapter(tuple[Verdict, ...]),
)
CLAIM = Operation(
    "claim",
    Scope.EXECUTE,
    "Ask for the right to run an approved call once.",
    TypeAdapter(ClaimRequest),
    TypeAdapter[ClaimReply](ClaimReply),
)
HEARTBEAT = Operation(
    "heartbeat",
    Scope.EXECUTE,
    "Keep a claim; false when it is no longer yours.",
    TypeAdapter(Heartbeat),
    TypeAdapter(bool),
)
FINISH = Operation(
    "finish",
    Scope.EXECUTE,
    "Record what an execution came to; false when the claim is not yours.",
    TypeAdapter(Finish),
    TypeAdapter(bool),
)
RELEASE = Operation(
    "release",
    Scope.EXECUTE,
    "Give a claim back unused.",
    TypeAdapter(Release),
    TypeAdapter(None),
)
REPORT_PROGRESS = Operation(
    "report_progress",
    Scope.EXECUTE,
    "Ask to run a call that needs nobody, or say what happens to one.",
    TypeAdapter(CallProgress),
    TypeAdapter(CallBegun),
)
ENDED = Operation(
    "ended",
    Scope.EXECUTE,
    "Report how a call that needed nobody ended.",
    TypeAdapter(CallEnd),
    TypeAdapter(None),
)
OUTCOMES = Operation(
    "outcomes",
    Scope.READ,
    "Return what became of the calls of a message.",
    TypeAdapter(TurnRef),
    TypeAdapter(tuple[CallOutcome, ...]),
)
SUPERSEDE = Operation(
    "supersede",
    Scope.SUBMIT,
    "End what still waits of a turn: its thread moved on.",
    TypeAdapter(TurnRef),
    TypeAdapter(None),
)
HISTORY = Operation(
    "history",
    Scope.READ,
    "Return what people changed in the calls of a run that ran.",
    TypeAdapter(History),
    TypeAdapter(tuple[EditRecord, ...]),
)
EDITS_KNOWN = Operation(
    "edits_known",
    Scope.READ,
    "Return which edits people really made.",
    TypeAdapter(EditsQuestion),
    TypeAdapter(EditsKnown),
)
LATE_REPORTS = Operation(
    "late_reports",
    Scope.READ,
    "Return what executors reported after people had found out.",
    TypeAdapter(LateReportsQuestion),
    TypeAdapter(tuple[LateReport, ...]),
)
NOTE = Operation(
    "note",
    Scope.READ,
    "Return which tools of an agent need a person.",
    TypeAdapter(NoteQuestion),
    TypeAdapter(AgentNote),
)

REMEMBER = Operation(
    "remember",
    Scope.SUBMIT,
    "Say who asked for a run; they cannot approve what comes of it.",
    TypeAdapter(RunFacts),
    TypeAdapter(None),
)
PENDING = Operation(
    "pending",
    Scope.READ,
    "Return the calls of a run that wait for people.",
    TypeAdapter(RunQuestion),
    TypeAdapter(tuple[PendingCall, ...]),
)
ANSWERS = Operation(
    "answers",
    Scope.READ,
    "Return the answers to a thread's open questions; waits for the first one.",
    TypeAdapter(AnswersQuestion),
    TypeAdapter(tuple[Answered, ...]),
)
WITHDRAW = Operation(
    "withdraw",
    Scope.SUBMIT,
    "End calls that wait; return the ids of those that were ended now.",
    TypeAdapter(Withdrawal),
    TypeAdapter(tuple[str, ...]),
)
SUPERSEDE_RUN = Operation(
    "supersede_run",
    Scope.SUBMIT,
    "End everything that waits in a run: its thread is deleted.",
    TypeAdapter(RunQuestion),
    TypeAdapter(None),
)

OPERATIONS: tuple[Operation[Any, Any], ...] = (
    SUBMIT,
    CLAIM,
    HEARTBEAT,
    FINISH,
    RELEASE,
    REPORT_PROGRESS,
    ENDED,
    OUTCOMES,
    SUPERSEDE,
    HISTORY,
    EDITS_KNOWN,
    LATE_REPORTS,
    NOTE,
    REMEMBER,
    PENDING,
    ANSWERS,
    WITHDRAW,
    SUPERSEDE_RUN,
)
