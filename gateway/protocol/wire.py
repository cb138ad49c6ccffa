"""Wire messages between an agent and the gateway.

The same records pass through the in-process port and, as JSON, over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.digest import BusinessState
from keyturn.gateway.protocol.records import (
    EditOutcome,
    EditRecord,
    Evidence,
    ItemState,
    NotTaken,
    Person,
    Reading,
    Record,
    Result,
    RunRef,
    Tier,
    Untold,
    Verb,
)
from keyturn.gateway.protocol.strict_json import JsonObject

ProgressVerb = Literal["begin", "enter", "give_back"]
"""``begin`` asks to run a call, ``enter`` reports that an agent began inside it.

``give_back`` reports a pause: the call may run again.
"""


class CallProgress(Record):
    """One step of a call that runs without a record."""

    verb: ProgressVerb
    ref: TurnRef
    tool: str
    tool_call_id: str


class CallBegun(Record):
    """Whether a call may run; else its stored result, None if unknown.

    ``keeps_result`` is False if the gateway would not store the result: a successful
    end then need not be reported.
    """

    may_run: bool = True
    result: Result | None = None
    keeps_result: bool = True


class CallEnd(Record):
    """The end of a call without a record.

    ``is_over`` is False if the call raised: it may run again. The gateway counts only
    failures of calls that it allowed to run.
    """

    ref: TurnRef
    tool: str
    tool_call_id: str
    result: Result
    is_over: bool = True


ARGS_TAG = "keyturn/v1/args"
APPROVAL_INTERRUPT: Final = "keyturn.approval"
RECONCILE_INTERRUPT: Final = "keyturn.reconcile"


def args_hash(args: JsonObject) -> str:
    """Hash bare arguments, to detect a change between submission and execution."""
    return digest.tagged_hash(ARGS_TAG, digest.canonical(args))


MAX_TASK = 200
"""Longest name of a task, in characters."""


MAX_EVIDENCE = 10
"""Most sources of one call."""


class TurnRef(Record):
    """One AI message of one agent in one thread.

    A new turn supersedes waiting calls of earlier turns in its lane ``ns`` or inside
    it. A lane is any name without ``|``, or a LangGraph namespace; the empty one
    contains all others. ``nested_in`` is the enclosing run of an agent inside another
    agent's tool.
    """

    agent: str
    thread: str
    ns: str = ""
    message_id: str
    nested_in: RunRef | None = None

    @property
    def run_ref(self) -> RunRef:
        """Return the run of this turn."""
        return self.nested_in or RunRef(agent=self.agent, thread=self.thread)

    @property
    def names(self) -> dict[str, str]:
        """Return the names that identify this turn."""
        # No `model_dump`: they are texts, and each call reads them eight times.
        return {name: it for name, it in self.__dict__.items() if name != "nested_in"}


class CallHint(Record):
    """Hint of the agent's code about one call: it can raise or narrow.

    It is part of the turn, so the hint of the first submission counts. The gateway
    joins it with the policy's evaluation
    (`keyturn.gateway.service.submit.turn_evaluation.apply_hint`).

    Attributes:
        hold: True asks for a person. False asks for none, and counts only if the policy
            lets a hint lower the tier. None is no hint.
        allow: the only decisions a reviewer should have; None for all that the policy
            allows.
        description: untrusted text for the reviewer.
        evidence: sources for the reviewer, up to ten.
        task: the agent's name for the task; calls of one task may share a card.
        untold: what the agent does not learn of a decision; forms say so.
    """

    hold: bool | None = Field(default=None, strict=True)
    allow: tuple[Verb, ...] | None = None
    description: str = ""
    evidence: tuple[Evidence, ...] = Field(default=(), max_length=MAX_EVIDENCE)
    task: str = Field(default="", max_length=MAX_TASK)
    untold: tuple[Untold, ...] = ()


class ProposedCall(Record):
    """One tool call as it would run, with the hint of the agent's code.

    Attributes:
        tool: its name.
        args: the canonical arguments, exactly as the tool would get them.
        tool_call_id: the id that the model gave it.
        hint: hint of the agent's code.
        original_args: the model's arguments, where the tool reads them differently;
            evidence for people, neither hashed nor run.
        problem: a sentence for the model about a call that cannot run, because it does
            not fit its tool or names none; ``args`` are the model's then.
        state: the business state that the tool's `recheck` returned; None without one.
        is_question: ``args`` are a `QuestionSet` for people to answer; it never runs.
    """

    tool: str
    args: JsonObject
    tool_call_id: str
    hint: CallHint | None = None
    original_args: JsonObject | None = None
    problem: str = ""
    state: BusinessState | None = None
    is_question: bool = False


PROGRAM = r"^(?:[A-Za-z0-9](?:[A-Za-z0-9 _.:/-]{0,78}[A-Za-z0-9])?)?$"
"""Name of a program that runs calls by itself, or "": up to 80 characters."""


class Turn(Record):
    """All calls of one AI message, submitted together.

    ``says`` is the model's text in that message: unverified evidence. ``schemas`` maps
    a tool's name to the JSON Schema of its arguments, declared by the agent.
    ``enclosing_run`` is the run in whose tool the turn's run was started. Its people
    may have asked for these calls, so it only adds people who must not decide.
    ``resumes_itself`` is True if the agent's process resumes its thread after
    decisions; over HTTP it always does. ``handed_to`` names the program that runs these
    calls by itself, such as "Claude Code": the gateway hands decisions over and cannot
    see what runs. Empty: the caller claims, runs and finishes each call.
    """

    ref: TurnRef
    calls: tuple[ProposedCall, ...]
    says: str = ""
    schemas: dict[str, JsonObject] = Field(default_factory=dict)
    enclosing_run: RunRef | None = None
    resumes_itself: bool = False
    handed_to: str = Field(default="", pattern=PROGRAM)


class VerdictKind(StrEnum):
    """The policy's result for one call."""

    RUN = "run"
    HOLD = "hold"
    DENY = "deny"


class Verdict(Record):
    """The gateway's result for one call of a turn, in the order of the calls.

    ``item_id`` and ``action_hash`` (of the request) are set if the call has a record
    and has to be claimed: if ``kind`` is hold, or at tier ``notify``. ``reason`` is a
    sentence for the model if ``kind`` is deny. If the agent asks more than people can
    review, ``retry_after_s`` is how long to wait before more calls, and ``waiting`` the
    number of its waiting calls; both are set if ``kind`` is hold.
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
    retry_after_s: float = 0.0
    waiting: int = 0

    @property
    def runs_unclaimed(self) -> bool:
        """Return whether the call runs without a claim: only this verdict allows it."""
        return self.kind is VerdictKind.RUN and not self.item_id


class AnswerKind(StrEnum):
    """The ways in which the wait for a held call can end."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    WITHDRAWN = "withdrawn"
    LAPSED = "lapsed"


class Answer(Record):
    """The value that resumes the interrupt `APPROVAL_INTERRUPT` of a held call.

    ``action_hash`` is that of the request and binds the answer to its question.
    ``args`` are the executed arguments of an edit; unchanged ones keep their submitted
    order and number types. ``message`` is the text of the approvers, the reason of a
    rejection, the text of a response, or a sentence about any other end. ``approvals``
    is the text of the approvers of an edited call. ``has_started`` is True if the call
    was started before it went back to people. ``answers`` are people's answers to the
    questions of a call, in order; None if there are none. ``is_question`` is True for a
    call that asks people.
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
    def why_approved(self) -> str:
        """Return the text of the approvers of the call, unchanged or edited."""
        return self.message if self.type is AnswerKind.APPROVE else self.approvals


FindingWord = Literal["executed", "rerun", "skip"]


class ReconcileAnswer(Record):
    """The value that resumes `RECONCILE_INTERRUPT`, for an execution in doubt."""

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

    ``owner`` names one attempt: 16 random bytes in hex, or a random UUID. A repeated
    claim of an owner gets the same grant, so that a lost answer can be asked for again.
    ``state`` answers a `CheckState`. ``reading`` sends an edited call back to people,
    because its tool would not run with exactly its arguments.
    """

    item_id: str
    ref: TurnRef
    tool: str
    tool_call_id: str
    owner: str = Field(pattern=r"^[0-9a-f-]{32,36}$")
    state: StateNow | None = None
    reading: Reading | None = None


class Claimed(Record):
    """Run exactly ``action`` (a canonical document) now, once.

    The claim lasts for ``lease_s`` seconds; heartbeats with ``fence`` extend it.
    ``idempotency_key`` is the same for every attempt at this authorization.
    ``asks_on_failure`` is True if people reconcile a failure. ``reconciled`` is
    people's finding about an earlier attempt, if they had the call run again.
    ``requested`` is the document of the request if ``action`` has a newer state.
    ``receipt`` proves to the tool's side that this call may run; "" without keys.
    ``trace`` is the ``traceparent`` of its submission; "" without a tracer.
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
    trace: str = ""


MAX_DETAIL = 2000
"""Longest text of another program about a call that was handed to it, in characters."""


class CheckState(Record):
    """Read the business state for the arguments of ``action``, then claim again.

    Nothing was claimed. The members are as in `Claimed`.
    """

    kind: Literal["check_state"] = "check_state"
    action: str
    action_hash: str
    edit: EditRecord | None = None
    requested: str = ""


class Done(Record):
    """It ran before, with this result.

    ``reconciled`` is people's finding at the last reconciliation. ``reconcile_answer``
    is the same finding, if it replaces the result.
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
    """An owner died between effect and record; a person has to find out what happened.

    ``edit`` is an earlier change by a person: if the call ran, it ran with these
    arguments.
    """

    kind: Literal["in_doubt"] = "in_doubt"
    edit: EditRecord | None = None


class Refused(Record):
    """It must not run; ``reason`` is a sentence for the model."""

    kind: Literal["refused"] = "refused"
    reason: str
    state: ItemState | None = None


class Reopened(Record):
    """It went back to people, for this reason; ask for its answer again."""

    kind: Literal["reopened"] = "reopened"
    reason: str


class HandedOver(Record):
    """It was handed over before: ``taken`` by its program, or not (``problem``)."""

    kind: Literal["handed_over"] = "handed_over"
    taken: bool
    problem: NotTaken = ""
    edit: EditRecord | None = None


class HandOverEnd(Record):
    """How the hand-over of a claimed call ended.

    Attributes:
        item_id: id of the call.
        fence: of the claim. It stays valid after its lease, until the next claim.
        taken: the program certainly took the decision.
        problem: why it did not; empty exactly if it did.
        detail: the program's error: untrusted text for people.
    """

    item_id: str
    fence: int
    taken: bool
    problem: NotTaken = ""
    detail: str = Field(default="", max_length=MAX_DETAIL)

    @model_validator(mode="after")
    def _has_one_end(self) -> Self:
        if self.taken is bool(self.problem):
            raise ValueError("give a problem exactly if the decision was not taken")
        return self


class AskedAgain(Record):
    """Whether an agent asked again, after a person wanted it to; else the error."""

    item_id: str
    ok: bool = True
    detail: str = Field(default="", max_length=MAX_DETAIL)


class ReportedOutcome(Record):
    """A program's report of a call that was handed to it; the first one counts."""

    item_id: str
    ok: bool
    summary: str = Field(default="", max_length=MAX_DETAIL)


ClaimReply = Annotated[
    Claimed | CheckState | Done | Busy | InDoubt | Refused | Reopened | HandedOver,
    Field(discriminator="kind"),
]


class AgentNote(Record):
    """Names of tools that need a person, for the system prompt, and all tiers.

    Attributes:
        gated_tools: tools of the policy that need a person.
        other_tools_are_gated: tools outside the policy need a person.
        tiers: the listed tier of each tool of the policy.
        other_tier: the tier of the other tools.
        varying: tools of the policy whose arguments can raise the tier.
    """

    gated_tools: tuple[str, ...] = ()
    other_tools_are_gated: bool = True
    tiers: dict[str, Tier] = Field(default_factory=dict[str, Tier])
    other_tier: Tier = Tier.APPROVE
    varying: tuple[str, ...] = ()


class CallOutcome(Record):
    """The outcome of one held call, for repairing an interrupted turn.

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
    """An executor's report that came after people had reconciled its call.

    ``is_apart`` is True if it is about an earlier attempt than the call's result.
    """

    item_id: str
    tool_call_id: str
    ok: bool
    summary: str = ""
    is_apart: bool = False


class EditsKnown(Record):
    """The edits in an agent's state, by hash; edits in neither set were never made.

    ``made`` has the outcome of each call. ``unknown`` edits have no record, or no
    longer.
    """

    made: dict[str, EditOutcome] = Field(default_factory=dict[str, EditOutcome])
    unknown: frozenset[str] = frozenset()


def check_texts(turn: Turn) -> None:
    """Check the names of a turn and its calls, and their texts.

    Raises:
        NotAllowed: when the turn is not named, or a string is not Unicode.
    """
    for name in ("agent", "thread", "message_id"):
        if not getattr(turn.ref, name):
            raise NotAllowed(
                f"A turn was submitted with {name}='', so no call was evaluated or "
                "ran. Submit it with the name that it has."
            )
    try:
        "".join(turn.schemas).encode()
        turn.model_dump_json(exclude=_CHECKED_LATER)
    except ValueError as error:
        raise NotAllowed(
            "A text of this turn contains half of a surrogate pair, so no call was "
            "evaluated or ran. Submit it as Unicode."
        ) from error


_CHECKED_LATER: Mapping[str, Any] = {
    "schemas": True,
    "calls": {"__all__": {"args", "original_args", "state"}},
}
"""Parts that are no texts: their checks refuse a call, and not its turn."""
