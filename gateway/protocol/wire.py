"""Shape what an agent and the gateway say to each other.

The same records go through the in-process port and, one day, over HTTP as JSON.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from gateway.approvals import digest
from gateway.approvals.business_state import BusinessState
from gateway.approvals.lifecycle import ItemState
from gateway.approvals.record import (
    NOT_KNOWN,
    EditRecord,
    Home,
    Item,
    Person,
    Record,
    Result,
    Settlement,
    Verb,
)
from gateway.approvals.strict_json import JsonObject
from gateway.approvals.tiers import Tier
from gateway.claim_replies import Busy as Busy  # noqa: PLC0414 - re-export
from gateway.claim_replies import CheckState as CheckState  # noqa: PLC0414 - re-export
from gateway.claim_replies import Claimed as Claimed  # noqa: PLC0414 - re-export
from gateway.claim_replies import FindingWord as FindingWord  # noqa: PLC0414 - re-export
from gateway.claim_replies import InDoubt as InDoubt  # noqa: PLC0414 - re-export
from gateway.claim_replies import ReconcileAnswer as ReconcileAnswer  # noqa: PLC0414 - re-export
from gateway.claim_replies import Refused as Refused  # noqa: PLC0414 - re-export
from gateway.claim_replies import Reopened as Reopened  # noqa: PLC0414 - re-export
from gateway.claim_replies import StateNow as StateNow  # noqa: PLC0414 - re-export

ARGS_TAG = "twokey/v1/args"
APPROVAL_INTERRUPT = "twokey.approval"
RECONCILE_INTERRUPT = "twokey.reconcile"


def args_hash(args: JsonObject) -> str:
    """Hash bare arguments, to notice a change between submit and execution."""
    return digest.tagged_hash(ARGS_TAG, digest.canonical(args))


class TurnRef(Record):
    """One AI message of one agent in one thread; ``ns`` is its checkpoint namespace.

    ``outer`` is the run around an agent that runs inside another one's tool.
    """

    agent: str
    thread: str
    ns: str = ""
    message_id: str
    outer: Home | None = None

    @property
    def home(self) -> Home:
        """Return the run that this turn belongs to."""
        return self.outer or Home(agent=self.agent, thread=self.thread)

    @property
    def names(self) -> dict[str, str]:
        """Return what tells this turn from every other one."""
        return {
            "agent": self.agent,
            "thread": self.thread,
            "ns": self.ns,
            "message_id": self.message_id,
        }


class CallHint(Record):
    """What the agent's own code wishes for one call: a word that can raise or narrow.

    It is part of the turn, so it counts as it was when the turn was first submitted.
    The gateway joins it with what policy says (`gateway.service.hints.apply_hint`).

    Attributes:
        hold: True asks for a person; False wishes for none, and counts only where
            policy lets an agent's word loosen; None wishes nothing.
        allow: the only decisions a reviewer should have; None: all that policy allows.
        description: untrusted text for the reviewer.
    """

    hold: bool | None = Field(default=None, strict=True)
    allow: tuple[Verb, ...] | None = None
    description: str = ""


class ProposedCall(Record):
    """One tool call as it would run, with the wish of the agent's own code.

    Attributes:
        tool: its name.
        args: the canonical arguments: exactly what the tool would get.
        tool_call_id: the model's id of it.
        hint: what the agent's own code wishes.
        spelled: what the model wrote, where the tool reads it as something else; it is
            evidence for people and is neither hashed nor run.
        problem: a sentence for the model about a call that cannot run as it is, because
            it does not fit its tool or names none; ``args`` are the model's own then.
        state: the business state that its tool's `recheck` returned; None without one.
    """

    tool: str
    args: JsonObject
    tool_call_id: str
    hint: CallHint | None = None
    spelled: JsonObject | None = None
    problem: str = ""
    state: BusinessState | None = None


class Turn(Record):
    """All calls of one AI message, submitted together.

    ``says`` is the model's own text of that message: unverified evidence. ``schemas``
    maps a tool's name to the JSON Schema of its arguments, as the agent declares it.
    ``around`` is the run in whose tool the turn's own run was started: its people may
    have asked for these calls. It adds people who must not decide, and nothing else.
    """

    ref: TurnRef
    calls: tuple[ProposedCall, ...]
    says: str = ""
    schemas: dict[str, JsonObject] = Field(default_factory=dict)
    around: Home | None = None


class VerdictKind(StrEnum):
    """What policy says of one call."""

    RUN = "run"
    HOLD = "hold"
    DENY = "deny"


class Verdict(Record):
    """The gateway's word on one call of a turn, in the order of the calls.

    ``item_id`` and ``action_hash`` (of the request) are set when ``kind`` is hold.
    ``reason`` is a sentence for the model when it is deny. ``notice`` names the row of
    the notice that shows a call which runs: its agent tells how it ended.
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
    notice: str = ""
    args_schema: JsonObject | None = None


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
    """

    type: AnswerKind
    item_id: str
    action_hash: str
    args: JsonObject | None = None
    message: str = ""
    approvals: str = ""
    by: Person | None = None
    has_started: bool = False

    @property
    def why_approved(self) -> str:
        """Return what those wrote who approved the call, as it was or edited."""
        return self.message if self.type is AnswerKind.APPROVE else self.approvals


class ClaimRequest(Record):
    """Ask for the right to execute one held call once.

    ``owner`` names the process and attempt. ``state`` answers a `CheckState`.
    """

    item_id: str
    ref: TurnRef
    tool: str
    tool_call_id: str
    owner: str
    state: StateNow | None = None


class Done(Record):
    """It ran before, with this result.

    ``settled`` is what people said of the last doubt about it; ``found`` is the same
    when it is to be read in place of the result.
    """

    kind: Literal["done"] = "done"
    result: Result
    edit: EditRecord | None = None
    found: ReconcileAnswer | None = None
    settled: ReconcileAnswer | None = None


ClaimReply = Annotated[
    Claimed | CheckState | Done | Busy | InDoubt | Refused | Reopened,
    Field(discriminator="kind"),
]


MarkVerb = Literal["begin", "enter", "give_back"]
"""``begin`` asks to run a call, ``enter`` says that an agent began inside it, and
``give_back`` that it paused: it may run again."""


class CallMark(Record):
    """Say what happens to a call that runs unasked."""

    verb: MarkVerb
    ref: TurnRef
    tool: str
    tool_call_id: str


class CallBegun(Record):
    """Say whether a call may run; else what it came to, None when nobody knows."""

    may_run: bool = True
    result: Result | None = None


class CallEnd(Record):
    """Say how a call ended that ran unasked; ``notice`` is the row that shows it.

    It is empty where no notice shows it. ``is_over`` is False when the call raised: it
    may be run again. The gateway compares the rest with its own record.
    """

    notice: str
    ref: TurnRef
    tool: str
    tool_call_id: str
    result: Result
    is_over: bool = True


class AgentNote(Record):
    """What the system prompt says about the gate: names of tools that need a person."""

    gated_tools: tuple[str, ...] = ()
    other_tools_are_gated: bool = True


_ENDINGS = {
    ItemState.EXPIRED: (
        AnswerKind.EXPIRED,
        "Nobody decided in time",
    ),
    ItemState.SUPERSEDED: (
        AnswerKind.SUPERSEDED,
        "The conversation moved on",
    ),
    ItemState.WITHDRAWN: (
        AnswerKind.WITHDRAWN,
        "The request was withdrawn",
    ),
    ItemState.LAPSED: (
        AnswerKind.LAPSED,
        "The authorization was not used in time",
    ),
}


UNASKED_ENDS: frozenset[ItemState] = frozenset(_ENDINGS)
"""The states in which a call ended without the word of a person."""


def answer_for(item: Item) -> Answer | None:
    """Return the answer that a held call is resumed with; None while it is pending.

    An item that is executing, executed, failed or in doubt is answered as what it was
    authorized as: the same answer again, never a second question.
    """
    if item.state is ItemState.PENDING:
        return None
    if item.state in _ENDINGS:
        kind, _ = _ENDINGS[item.state]
        return _answer(item, kind, message=ended(item))
    text = item.settlement.text if item.settlement else ""
    if item.state is ItemState.REJECTED:
        return _answer(item, AnswerKind.REJECT, message=text)
    if item.state is ItemState.ANSWERED:
        return _answer(item, AnswerKind.RESPOND, message=text)
    if item.edit is not None:
        why = item.edit.reason
        edited = _answer(item, AnswerKind.EDIT, message=why, args=item.args)
        return edited.with_(approvals=_why_approved(item))
    return _answer(item, AnswerKind.APPROVE, message=_why_approved(item))


def _why_approved(item: Item) -> str:
    """Return the reasons of those who approved, each with its author; or nothing."""
    return " ".join(
        f"{vote.by.name or vote.by.user} approved this call and wrote: "
        f"{json.dumps(vote.reason, ensure_ascii=False)}."
        for vote in item.votes
        if vote.reason and vote.action_hash == item.action_hash
    )


def ended(item: Item) -> str:
    """Say why a call that nobody rejected does not run, as a sentence for the model."""
    _, why = _ENDINGS[item.state]
    if item.revoked is not None and item.revoked.is_final:
        why = item.revoked.reason.removesuffix(".")
    if item.is_restored:
        return f"{why}. {NOT_KNOWN}; look before you ask again."
    if item.state is ItemState.WITHDRAWN and item.settlement is not None:
        return _taken_back(item.settlement)
    if item.fence:
        return f"{why}, so the call does not go on. What it did before that stays."
    return f"{why}, so the call did not run."


def _taken_back(settlement: Settlement) -> str:
    said = "Somebody who asked for this call took it back, so it did not run."
    if not settlement.text:
        return said
    return f"{said} Their reason: {json.dumps(settlement.text, ensure_ascii=False)}."


def unknown_answer(item_id: str, action_hash: str, why: str) -> Answer:
    """Return the answer about a call of which nothing is known; ``why`` says so."""
    return Answer(
        type=AnswerKind.WITHDRAWN,
        item_id=item_id,
        action_hash=action_hash,
        message=(
            f"{why} So it does not run now. Look before you ask again whether it ran "
            "before."
        ),
    )


def _answer(
    item: Item, kind: AnswerKind, *, message: str = "", args: JsonObject | None = None
) -> Answer:
    return Answer(
        type=kind,
        item_id=item.id,
        action_hash=digest.action_hash(item.requested),
        args=args,
        message=message,
        by=item.settlement.by if item.settlement else None,
        has_started=item.fence > 0 or item.is_restored,
    )
