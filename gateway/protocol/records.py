"""Records that cross the wire, and the words in them: states, verbs, tiers, effects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from keyturn.gateway.protocol.strict_json import JsonObject

_SLACK_USER = re.compile(r"[UW][A-Z0-9]+", re.ASCII)

NO_SLACK_ID = (
    "This is no id of a Slack user; give one, such as U0123ABCD. Without it, whoever "
    "asked could approve their own call."
)
"""What is wrong with a person that a program names otherwise."""


class Record(BaseModel):
    """An immutable record that refuses fields it does not know.

    What does not fit is named without what it holds: that may be an argument.
    """

    # `forbid`: an unknown field may change the meaning of a record.
    # `hide_input_in_errors`: an error's text ends in logs.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def with_(self, **changes: object) -> Self:
        """Return a copy with these fields replaced; values are trusted, not parsed.

        What comes from outside is parsed by ``model_validate`` and never put in here.
        """
        return self.model_copy(update=changes)


class Person(Record):
    """A Slack person. Only ``user`` identifies; ``name`` is for reading."""

    team: str
    user: str
    name: str = ""

    def is_same(self, other: Person) -> bool:
        """Return whether both are one person, by their Slack ids and never by name.

        Also where the teams differ: a bot knows everybody by its own workspace, and a
        program may name the organization's id, or a wrong one. By the team, whoever
        asked could then approve, and one person could be two of two.
        """
        return self.user == other.user

    @property
    def has_slack_id(self) -> bool:
        """Return whether ``user`` may be an id that Slack gives a user."""
        return _SLACK_USER.fullmatch(self.user) is not None


class RunRef(Record):
    """The run that calls belong to: the outermost agent, and its thread.

    People speak to it, a worker brings it forward, and what waits inside it ends with
    it. An agent that runs in no tool of another one is a run of its own.
    """

    agent: str
    thread: str


class EditOutcome(StrEnum):
    """Whether an edited call ran: what an agent may be told of its effect."""

    EXECUTED = "executed"
    UNKNOWN = "unknown"
    NOT_RUN = "not_run"


class EditRecord(Record):
    """What a person changed in a call, and whether the changed call ran.

    ``patch`` is RFC 6902 from the original to the edited arguments, the two hashes are
    those of the two action documents. ``outcome`` and ``seal`` are set when an agent is
    told; the stored record of an item does not have them. By the seal the gateway
    confirms the edit when it no longer has the item.
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
    """What the executor reported.

    ``payload`` is the tool's answer in the executor's own encoding; the gateway keeps
    it to hand it back and never reads it. ``summary`` is untrusted text for the card:
    the tool's output, the error that it raised, or why it was not started.
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
        """Return what this result proves of an edited call."""
        if self.ok:
            return EditOutcome.EXECUTED
        return EditOutcome.UNKNOWN if self.has_started else EditOutcome.NOT_RUN


def is_inside(ns: str, outer: str) -> bool:
    """Return whether one agent's namespace lies inside that of another.

    LangGraph names what runs inside a task ``|node:task``. The second and the third
    graph that one task runs are ``|1`` and ``|2``: they run beside the first.
    """
    inner = ns.removeprefix(f"{outer}|") if outer else ns
    is_longer = inner != ns or not outer
    # Graphs that one task runs side by side are not inside each other.
    return is_longer and ns != outer and not inner.partition("|")[0].isdecimal()


MAX_PROBLEM = 500
"""Characters of why a tool does not accept arguments."""


class Reading(Record):
    """How a tool reads the arguments of the edited call with this hash.

    The tool reads them as ``args``, or refuses them: then ``problem`` is its reason,
    in the agent's words.
    """

    action_hash: str = ""
    args: JsonObject | None = None
    problem: str = Field(default="", max_length=MAX_PROBLEM)


class ItemState(StrEnum):
    """Where one call stands. ``authorized`` is not ``executed``."""

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


class Verb(StrEnum):
    """What a reviewer can say about an item."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"


class Finding(StrEnum):
    """What a person found out about an execution in doubt."""

    EXECUTED = "executed"
    RERUN = "rerun"
    SKIP = "skip"


class Tier(StrEnum):
    """What a call needs before it may run, from least to most.

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
        """Return the place in the order, 0 for ``auto``."""
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
    """Return the highest of the tiers; the only way in which tiers combine."""
    # By rank: as texts, "auto" > "approve".
    return max((first, *others), key=lambda tier: tier.rank)


class Effect(StrEnum):
    """What a call does to the world, from least to most.

    ``read`` changes nothing, ``reversible`` can be taken back, ``irreversible`` cannot.
    A tool without a class of its own counts as irreversible.
    """

    READ = "read"
    REVERSIBLE = "reversible"
    IRREVERSIBLE = "irreversible"


_GRAVITY = {effect: rank for rank, effect in enumerate(Effect)}


def gravest(effects: Iterable[Effect]) -> Effect:
    """Return what several calls do together; ``irreversible`` for none."""
    # By rank: as texts, "irreversible" < "read".
    return max(effects, key=_GRAVITY.__getitem__, default=Effect.IRREVERSIBLE)
