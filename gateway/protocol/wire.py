"""Wire messages between an agent and the gateway.

The same records go through the in-process port and, one day, over HTTP as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.business_state import BusinessState
from keyturn.gateway.protocol.records import (
    EditOutcome,
    EditRecord,
    ItemState,
    Person,
    Reading,
    Record,
    Result,
    RunRef,
    Tier,
    Verb,
)
from keyturn.gateway.protocol.strict_json import JsonObject

ProgressVerb = Literal["begin", "enter", "give_back"]
"""``begin`` asks to run a call, ``enter`` says that an agent began inside it, and
``give_back`` that it paused: it may run again."""


class CallProgress(Record):
    """What happens to a call that runs without a record: one step of it."""

    verb: ProgressVerb
    ref: TurnRef
    tool: str
    tool_call_id: str


class CallBegun(Record):
    """Whether a call may run; else its stored result, None when nobody knows it.

    ``keeps_result`` is False where the gateway would not keep what the call returns:
    then the end of one that went well need not be told.
    """

    may_run: bool = True
    result: Result | None = None
    keeps_result: bool = True


class CallEnd(Record):
    """How a call without a record ended.

    ``is_over`` is False when the call raised: it may be run again. The gateway counts
    a failure of those alone that it let run.
    """

    ref: TurnRef
    tool: str
    tool_call_id: str
    result: Result
    is_over: bool = True


ARGS_TAG = "keyturn/v1/args"
APPROVAL_INTERRUPT = "keyturn.approval"
RECONCILE_INTERRUPT = "keyturn.reconcile"


def args_hash(args: JsonObject) -> str:
    """Hash bare arguments, to notice a change between submit and execution."""
    return digest.tagged_hash(ARGS_TAG, digest.canonical(args))


MAX_TASK = 200
"""Characters of the name of a task."""


class TurnRef(Record):
    """One AI message of one agent in one thread.

    A new turn ends what waits of earlier ones in its lane ``ns``, or inside it: any
    name without ``|``, or a LangGraph namespace; the empty one contains all others.
    ``nested_in`` is the run around an agent that runs inside another one's tool.
    """

    agent: str
    thread: str
    ns: str = ""
    message_id: str
    nested_in: RunRef | None = None

    @property
    def run_ref(self) -> RunRef:
        """Return the run that this turn belongs to."""
        return self.nested_in or RunRef(agent=self.agent, thread=self.thread)

    @property
    def names(self) -> dict[str, str]:
        """Return what tells this turn from every other one."""
        # Not dumped: they are texts, and are asked for eight times a call.
        return {name: it for name, it in self.__dict__.items() if name != "nested_in"}


class CallHint(Record):
    """Hint of the agent's own code about one call: it can raise or narrow.

    It is part of the turn, so it counts as it was when the turn was first submitted.
    The gateway joins it with what policy says
    (`keyturn.gateway.service.turn_evaluation.apply_hint`).

    Attributes:
        hold: True asks for a person; False asks for none, and counts only where
            policy lets an agent's word loosen; None says nothing.
        allow: the only decisions a reviewer should have; None: all that policy allows.
        description: untrusted text for the reviewer.
        task: what the call is part of, in a word of the agent's; calls of one task may
            share a card.
    """

    hold: bool | None = Field(default=None, strict=True)
    allow: tuple[Verb, ...] | None = None
    description: str = ""
    task: str = Field(default="", max_length=MAX_TASK)


class ProposedCall(Record):
    """One tool call as it would run, with the hint of the agent's own code.

    Attributes:
        tool: its name.
        args: the canonical arguments: exactly what the tool would get.
        tool_call_id: the model's id of it.
        hint: of the agent's own code.
        original_args: what the model wrote, where the tool reads it as something else;
            it is evidence for people and is neither hashed nor run.
        problem: a sentence for the model about a call that cannot run as it is, because
            it does not fit its tool or names none; ``args`` are the model's own then.
        state: the business state that its tool's `recheck` returned; None without one.
        is_question: ``args`` are a `QuestionSet`, which people answer; it never runs.
    """

    tool: str
    args: JsonObject
    tool_call_id: str
    hint: CallHint | None = None
    original_args: JsonObject | None = None
    problem: str = ""
    state: BusinessState | None = None
    is_question: bool = False


class Turn(Record):
    """All calls of one AI message, submitted together.

    ``says`` is the model's own text of that message: unverified evidence. ``schemas``
    maps a tool's name to the JSON Schema of its arguments, as the agent declares it.
    ``enclosing_run`` is the run in whose tool the turn's own run was started: its
    people may have asked for these calls. It adds people who must not decide, and
    nothing else. ``resumes_itself`` says that the agent's own process brings its thread
    forward once something was decided; over HTTP it always does.
    """

    ref: TurnRef
    calls: tuple[ProposedCall, ...]
    says: str = ""
    schemas: dict[str, JsonObject] = Field(default_factory=dict)
    enclosing_run: RunRef | None = None
    resumes_itself: bool = False


class VerdictKind(StrEnum):
    """What policy says of one call."""

    RUN = "run"
    HOLD = "hold"
    DENY = "deny"


class Verdict(Record):
    """The gateway's word on one call of a turn, in the order of the calls.

    ``item_id`` and ``action_hash`` (of the request) are set when the call has a record
    and is claimed: when ``kind`` is hold, or it runs at tier ``notify``.
    ``reason`` is a sentence for the model when it is deny.
    """

    kind: VerdictKind
    tool: str
    tool_call_id: str
    tier: Tier
    args_hash: str
    item_id: str = ""
    action_hash: str = ""
    allow: tuple[Verb, ...] = ()
    reason: str = ""
    args_schema: JsonObject | None = None

    @property
    def runs_unclaimed(self) -> bool:
        """Return whether the call runs without a claim: nothing but this lets it."""
        return self.kind is VerdictKind.RUN and not self.item_id


class AnswerKind(StrEnum):
    """Every way in which the wait for a held call can end."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    WITHDRAWN = "withdrawn"
    LAPSED = "lapsed"


class Answer(Record):
    """What a held call is resumed with, for the interrupt `APPROVAL_INTERRUPT`.

    ``action_hash`` is that of the request and binds the answer to its question.
    ``args`` are the executed arguments of an edit; unchanged ones have the order and
    number types in which they were submitted. ``message`` is what those wrote who
    approved, the reason of a rejection, the text of a response, or the sentence for any
    other end. ``approvals`` is what those wrote who approved an edited call.
    ``has_started`` says that the call was started before it went back to people.
    ``answers`` are those that people gave to the questions of a call, in order; None
    where nobody did. ``is_question`` says that it ends a call which asks people.
    """

    type: AnswerKind
    item_id: str
    action_hash: str
    args: JsonObject | None = None
    message: str = ""
    approvals: str = ""
    by: Person | None = None
    has_started: bool = False
    answers: tuple[str, ...] | None = None
    is_question: bool = False

    @property
    def asks_people(self) -> bool:
        """Return whether it ends a call that asks people."""
        # Before `is_question`, each such answer had `answers`.
        return self.is_question or self.answers is not None

    @property
    def why_approved(self) -> str:
        """Return what those wrote who approved the call, as it was or edited."""
        return self.message if self.type is AnswerKind.APPROVE else self.approvals


FindingWord = Literal["executed", "rerun", "skip"]


class ReconcileAnswer(Record):
    """What an execution in doubt is resumed with, for `RECONCILE_INTERRUPT`."""

    type: FindingWord
    item_id: str
    action_hash: str
    message: str = ""
    by: Person | None = None


class StateNow(Record):
    """The business state right before the action with this hash would run."""

    action_hash: str
    state: BusinessState


class ClaimRequest(Record):
    """Ask for the right to execute one recorded call once.

    ``owner`` and the request's idempotency key, both random, name one attempt.
    ``state`` answers a `CheckState`.
    ``reading`` puts an edited call to people again, because its tool would not run
    with exactly its arguments.
    """

    item_id: str
    ref: TurnRef
    tool: str
    tool_call_id: str
    owner: str
    state: StateNow | None = None
    reading: Reading | None = None


class Claimed(Record):
    """Run exactly ``action`` (a canonical document) now, once.

    The claim holds for ``lease_s`` seconds and is kept by heartbeats with ``fence``.
    ``idempotency_key`` is the same for every attempt at this authorization.
    ``asks_on_failure`` says that people reconcile a failure. ``reconciled``
    is what people said of an earlier attempt, when they had the call run again.
    ``requested`` is the document of the request where ``action`` has a newer state.
    ``receipt`` proves to whoever runs the tool that this call may run; "" without keys.
    """

    kind: Literal["new"] = "new"
    fence: int
    action: str
    action_hash: str
    idempotency_key: str
    lease_s: float
    edit: EditRecord | None = None
    asks_on_failure: bool = False
    reconciled: ReconcileAnswer | None = None
    requested: str = ""
    receipt: str = ""


class CheckState(Record):
    """Read the business state for the arguments of ``action``, then claim again.

    Nothing was claimed. The members are those of `Claimed`.
    """

    kind: Literal["check_state"] = "check_state"
    action: str
    action_hash: str
    edit: EditRecord | None = None
    requested: str = ""


class Done(Record):
    """It ran before, with this result.

    ``reconciled`` is what people found at the last reconciliation;
    ``reconcile_answer`` is the same when it is to be read in place of the result.
    """

    kind: Literal["done"] = "done"
    result: Result
    edit: EditRecord | None = None
    reconcile_answer: ReconcileAnswer | None = None
    reconciled: ReconcileAnswer | None = None


class Busy(Record):
    """A live owner executes it right now; ask again after ``retry_after_s``."""

    kind: Literal["busy"] = "busy"
    retry_after_s: float = 0.2


class InDoubt(Record):
    """An owner died between effect and record; a person has to say what happened.

    ``edit`` says what a person changed before: those arguments ran, if any did.
    """

    kind: Literal["in_doubt"] = "in_doubt"
    edit: EditRecord | None = None


class Refused(Record):
    """It must not run; ``reason`` is a sentence for the model."""

    kind: Literal["refused"] = "refused"
    reason: str
    state: ItemState | None = None


class Reopened(Record):
    """It went back to people, for this reason; ask about it again."""

    kind: Literal["reopened"] = "reopened"
    reason: str


ClaimReply = Annotated[
    Claimed | CheckState | Done | Busy | InDoubt | Refused | Reopened,
    Field(discriminator="kind"),
]


class AgentNote(Record):
    """What the system prompt says about the gate: names of tools that need a person."""

    gated_tools: tuple[str, ...] = ()
    other_tools_are_gated: bool = True


class CallOutcome(Record):
    """The outcome of one held call, for repairing a turn that was cut off.

    ``reconcile_answer`` and ``reconciled`` are as in `Done`.
    """

    item_id: str
    tool_call_id: str
    tool: str
    state: ItemState
    answer: Answer | None = None
    edit: EditRecord | None = None
    result: Result | None = None
    reconcile_answer: ReconcileAnswer | None = None
    reconciled: ReconcileAnswer | None = None


class LateReport(Record):
    """What an executor reported after people had reconciled its call.

    ``is_apart`` says that it is about an earlier attempt than the call's own result.
    """

    item_id: str
    tool_call_id: str
    ok: bool
    summary: str = ""
    is_apart: bool = False


class EditsKnown(Record):
    """The edits of an agent's state, by their hashes; those in neither were not made.

    ``made`` has the outcome of each call. ``unknown`` have no record, or no longer.
    """

    made: dict[str, EditOutcome] = Field(default_factory=dict[str, EditOutcome])
    unknown: frozenset[str] = frozenset()


def check_texts(turn: Turn) -> None:
    """Check what names a turn and its calls, and what is said of them.

    Raises:
        NotAllowed: when the turn is not named, or a string is not Unicode.
    """
    for name in ("agent", "thread", "message_id"):
        if not getattr(turn.ref, name):
            raise NotAllowed(
                f"A turn was submitted with {name}='', so no call was evaluated or "
                "ran. Submit it with the name that it has."
            )
    for where, text in _texts(turn):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise NotAllowed(
                f"The {where} {text!r} holds half of a surrogate pair, so nothing of "
                "this turn was evaluated or ran. Submit it as Unicode."
            ) from error


def _texts(turn: Turn) -> Iterator[tuple[str, str]]:
    yield from turn.ref.names.items()
    for run in (turn.ref.nested_in, turn.enclosing_run):
        if run is not None:
            yield "agent outside", run.agent
            yield "thread outside", run.thread
    yield "text", turn.says
    for call in turn.calls:
        yield from (("tool", call.tool), ("call id", call.tool_call_id))
        yield "problem", call.problem
        if call.hint is not None:
            yield "description", call.hint.description
    yield from (("schema of the tool", tool) for tool in turn.schemas)
