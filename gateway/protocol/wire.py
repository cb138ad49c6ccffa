"""Wire messages between an agent and the gateway.

The same records go through the in-process port and, one day, over HTTP as JSON.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from twokey.gateway.protocol import digest
from twokey.gateway.protocol.business_state import BusinessState
from twokey.gateway.protocol.records import EditRecord, Person, Record, Result, RunRef
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Verb

ARGS_TAG = "twokey/v1/args"
APPROVAL_INTERRUPT = "twokey.approval"
RECONCILE_INTERRUPT = "twokey.reconcile"


def args_hash(args: JsonObject) -> str:
    """Hash bare arguments, to notice a change between submit and execution."""
    return hash_of_canonical(digest.canonical(args))


def hash_of_canonical(args: bytes) -> str:
    """Hash arguments that are given as their canonical bytes."""
    return digest.tagged_hash(ARGS_TAG, args)


MAX_TASK = 200
"""Characters of the name of a task."""


class TurnRef(Record):
    """One AI message of one agent in one thread; ``ns`` is its checkpoint namespace.

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
        return self.nested_in or _outermost(self.agent, self.thread)

    @property
    def names(self) -> dict[str, str]:
        """Return what tells this turn from every other one."""
        # Not dumped: they are texts, and are asked for eight times a call.
        return {name: it for name, it in self.__dict__.items() if name != "nested_in"}


@lru_cache(maxsize=256)
def _outermost(agent: str, thread: str) -> RunRef:
    # Made once: a call asks for that of its turn seven times.
    return RunRef(agent=agent, thread=thread)


class CallHint(Record):
    """Hint of the agent's own code about one call: it can raise or narrow.

    It is part of the turn, so it counts as it was when the turn was first submitted.
    The gateway joins it with what policy says
    (`twokey.gateway.service.hints.apply_hint`).

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
    ``args`` are the executed arguments of an edit. ``message`` is what those wrote who
    approved, the reason of a rejection, the text of a response, or the sentence for any
    other end.
    ``approvals`` is what those wrote who approved an edited call.
    ``has_started`` says that the call was started before it went back to people.
    ``answers`` are those of people to the questions of a call, in order, or what the
    agent goes on with when nobody answered in time; None for any other call.
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

    ``owner`` names the process and attempt. ``state`` answers a `CheckState`.
    """

    item_id: str
    ref: TurnRef
    tool: str
    tool_call_id: str
    owner: str
    state: StateNow | None = None


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
    """What our record says of edits that an agent's state names, by their hashes.

    Those that are neither ``made`` nor ``unknown`` were not made. Of the unknown ones
    there is no record, or no longer: nobody can say whether people made them.
    """

    made: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
