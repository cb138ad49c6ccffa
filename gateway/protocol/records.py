"""Records that cross the wire, and the words in them: states, verbs, tiers, effects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from keyturn.gateway.protocol.strict_json import JsonObject

_SLACK_USER = re.compile(r"[UW][A-Z0-9]+", re.ASCII)

NO_SLACK_ID = (
    "This is not an id of a Slack user; use one such as U0123ABCD. Otherwise "
    "requesters could approve their own calls."
)
"""Error about a person whose Slack id a program did not give."""


class Record(BaseModel):
    """An immutable record that refuses unknown fields.

    Errors name the field without its value, which may be an argument.
    """

    # `forbid`: an unknown field may change the meaning of a record.
    # `hide_input_in_errors`: errors are logged.
    # Not `defer_build`: until pydantic 2.14, the first use of a model by two threads at
    # once raises an AttributeError.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def with_(self, **changes: object) -> Self:
        """Return a copy with these fields replaced; values are trusted, not parsed.

        Never pass data from outside; parse it with ``model_validate``.
        """
        return self.model_copy(update=changes)


class Person(Record):
    """A Slack person. Only ``user`` identifies; ``name`` is for reading."""

    team: str
    user: str
    name: str = ""

    def is_same(self, other: Person) -> bool:
        """Return whether both are one person, by Slack user id, never by name.

        Teams are not compared. A bot sees everyone in its workspace, while a program
        may use the organization's id, or a wrong one. With different teams, requesters
        could approve their own calls, and one person could count as two.
        """
        return self.user == other.user

    @property
    def has_slack_id(self) -> bool:
        """Return whether ``user`` has the form of a Slack user id."""
        return _SLACK_USER.fullmatch(self.user) is not None


class RunRef(Record):
    """The run of a call: the outermost agent and its thread.

    People speak to it, and a worker resumes it. When it ends, calls that wait inside it
    end, too. An agent that is not inside another agent's tool is the outermost agent.
    """

    agent: str
    thread: str


class EditOutcome(StrEnum):
    """Whether an edited call ran, as far as an agent may learn it."""

    EXECUTED = "executed"
    UNKNOWN = "unknown"
    NOT_RUN = "not_run"


class EditRecord(Record):
    """A person's change of a call, and whether the changed call ran.

    ``patch`` is RFC 6902 from the original to the edited arguments. The two hashes are
    those of the two action documents. ``outcome`` and ``seal`` are set only in records
    for agents, not in the stored record. With the seal, the gateway can confirm the
    edit after it has dropped the item.
    """

    v: int = 1
    item_id: str
    tool: str
    tool_call_id: str
    original_args: JsonObject
    edited_args: JsonObject
    patch: tuple[JsonObject, ...]
    original_hash: str
    edited_hash: str
    by: Person
    at_ms: int
    reason: str = ""
    outcome: EditOutcome = EditOutcome.UNKNOWN
    seal: str = ""


class FailureKind(StrEnum):
    """How a call failed whose tool returned nothing.

    ``REFUSED``: the tool began, and a call inside it was refused.
    """

    NOT_STARTED = "not_started"
    REFUSED = "refused"
    RAISED = "raised"


class Result(Record):
    """The executor's report.

    ``payload`` is the tool's answer in the executor's encoding; the gateway stores it
    and returns it unread. ``summary`` is untrusted text for the card: the tool's
    output, its error, or the reason why it was not started.
    """

    ok: bool
    summary: str = ""
    payload: str = ""
    failure: FailureKind | None = None

    @property
    def has_started(self) -> bool:
        """Return False if this result proves that the tool did not start."""
        return self.failure is not FailureKind.NOT_STARTED

    @property
    def edit_outcome(self) -> EditOutcome:
        """Return the outcome of an edited call that this result proves."""
        if self.ok:
            return EditOutcome.EXECUTED
        return EditOutcome.UNKNOWN if self.has_started else EditOutcome.NOT_RUN


def is_inside(ns: str, outer: str) -> bool:
    """Return whether one agent's namespace is inside that of another.

    LangGraph names a graph inside a task ``|node:task``. The second and third graph of
    one task are ``|1`` and ``|2``; they run in parallel with the first.
    """
    inner = ns.removeprefix(f"{outer}|") if outer else ns
    is_longer = inner != ns or not outer
    # Parallel graphs of one task are not inside each other.
    return is_longer and ns != outer and not inner.partition("|")[0].isdecimal()


MAX_PROBLEM = 500
"""Longest explanation of why a tool refuses arguments, in characters."""


class Reading(Record):
    """A tool's reading of the arguments of the edited call with this hash.

    ``args`` are the arguments after the tool has read them. If it refuses them,
    ``problem`` is the reason, in the agent's words.
    """

    action_hash: str = ""
    args: JsonObject | None = None
    problem: str = Field(default="", max_length=MAX_PROBLEM)


class ItemState(StrEnum):
    """State of one call. ``authorized`` is not ``executed``."""

    PENDING = "pending"
    AUTHORIZED = "authorized"
    EXECUTING = "executing"
    EXECUTED = "executed"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"
    REJECTED = "rejected"
    ANSWERED = "answered"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    WITHDRAWN = "withdrawn"
    LAPSED = "lapsed"
    HANDING_OVER = "handing_over"
    HANDED_OVER = "handed_over"
    NOT_TAKEN = "not_taken"


class Verb(StrEnum):
    """A reviewer's decision on an item."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"


class Untold(StrEnum):
    """What an agent does not learn of a decision, because its format cannot say it."""

    EDIT = "edit"
    EDIT_REASON = "edit_reason"
    REJECTION_REASON = "rejection_reason"


class Evidence(Record):
    """A source that an agent names for a call, unverified: an address or a text."""

    title: str = Field(min_length=1)
    url: str = ""
    text: str = ""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if bool(self.url) == bool(self.text):
            raise ValueError("a source has a `url` or a `text`; give one of them.")
        # It is stored without spaces around it.
        if not self.title.strip():
            raise ValueError("a source has a title that people can read.")
        return self


class Finding(StrEnum):
    """A person's finding about an execution in doubt."""

    EXECUTED = "executed"
    RERUN = "rerun"
    SKIP = "skip"


NotTaken = Literal["", "answered_elsewhere", "deleted", "refused", "failed"]
"""Why another program did not take a decision that was handed to it; "" if it did."""


class Tier(StrEnum):
    """The condition for a call to run, from least to most.

    ``auto`` runs and is recorded, ``notify`` runs and posts a notice, ``approve``
    needs one reviewer, ``escalate`` two distinct people, ``deny`` never runs.
    """

    AUTO = "auto"
    NOTIFY = "notify"
    APPROVE = "approve"
    ESCALATE = "escalate"
    DENY = "deny"

    @property
    def rank(self) -> int:
        """Return the position in the order, 0 for ``auto``."""
        return _RANKS[self]

    @property
    def needs_people(self) -> bool:
        """Return whether a person has to decide before the call may run."""
        return self in {Tier.APPROVE, Tier.ESCALATE}

    @property
    def is_auto_approved(self) -> bool:
        """Return whether the call runs without a person's decision."""
        return self in {Tier.AUTO, Tier.NOTIFY}


_RANKS = {tier: rank for rank, tier in enumerate(Tier)}


def join(first: Tier, *others: Tier) -> Tier:
    """Return the highest of the tiers; tiers are combined only here."""
    # By rank: as texts, "auto" > "approve".
    return max((first, *others), key=lambda tier: tier.rank)


class Effect(StrEnum):
    """The effect of a call on the world, from least to most.

    ``read`` changes nothing, ``reversible`` can be taken back, ``irreversible`` cannot.
    A tool without an effect counts as irreversible.
    """

    READ = "read"
    REVERSIBLE = "reversible"
    IRREVERSIBLE = "irreversible"


_GRAVITY = {effect: rank for rank, effect in enumerate(Effect)}


def gravest(effects: Iterable[Effect]) -> Effect:
    """Return the combined effect of several calls; ``irreversible`` for none."""
    # By rank: as texts, "irreversible" < "read".
    return max(effects, key=_GRAVITY.__getitem__, default=Effect.IRREVERSIBLE)
