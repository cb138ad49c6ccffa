"""Approvals, and what happens to them, as agents and their owners read them."""

from __future__ import annotations

from datetime import datetime

from twokey.gateway.protocol.records import Person, Record, RunRef
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Verb

PAGE = 50
"""Approvals of a page where nobody says how many."""

MOST_OF_A_PAGE = 200


class DecisionView(Record):
    """The word that ended the wait of a call: whose, when, and with which text."""

    verb: Verb
    by: Person
    at: datetime
    text: str = ""


class CallView(Record):
    """One call of an approval.

    Attributes:
        id: names the call everywhere else in this API.
        index: its place on the card.
        tool: what would run.
        tool_call_id: the model's id of it.
        args: with which arguments; what the policy redacts is hidden.
        action_hash: of exactly what would run; a decision names it.
        state: where it stands.
        tier: what it needs.
        reasons: why it needs that.
        allow: which decisions people have.
        expires_at: when its wait ends.
        changed_at: since when it stands there.
        approvals: how many people have approved it as it is now.
        is_edited: people changed its arguments.
        decision: the word that ended its wait.
        ok: whether it ran well; None before it ran.
    """

    id: str
    index: int
    tool: str
    tool_call_id: str
    args: JsonObject
    action_hash: str
    state: ItemState
    tier: Tier
    reasons: tuple[str, ...] = ()
    allow: tuple[Verb, ...] = ()
    expires_at: datetime
    changed_at: datetime
    approvals: int = 0
    is_edited: bool = False
    decision: DecisionView | None = None
    ok: bool | None = None


class ApprovalView(Record):
    """One request on one card.

    ``version`` rises with every edit, and a decision names it. ``run`` is the outermost
    agent and its thread. ``is_waiting`` says that a call of it waits for people.
    """

    id: str
    agent: str
    thread: str
    run: RunRef
    channel: str
    version: int
    is_waiting: bool
    created_at: datetime
    requester: Person | None = None
    calls: tuple[CallView, ...]


class ApprovalPage(Record):
    """A page of the queue; ``next`` is the cursor of the one after it, "" at the end.

    A page may be empty while there are others: what is not for this key is left out.
    """

    approvals: tuple[ApprovalView, ...]
    next: str = ""


class EventView(Record):
    """Something that happened to a call.

    Attributes:
        id: of this event; who follows goes on behind it.
        name: such as ``item.authorized``.
        agent: whose call it is.
        thread: its thread.
        run: the outermost agent and its thread: what has to be brought forward.
        approval: the approval.
        item: the call; "" for the approval as a whole.
        tool: the call's tool.
        state: where the call stands since then.
        at: when.
    """

    id: str
    name: str
    agent: str
    thread: str
    run: RunRef
    approval: str
    item: str = ""
    tool: str = ""
    state: ItemState | None = None
    at: datetime


class EventPage(Record):
    """Events in their order; ``next`` is the place behind the last one.

    ``missed`` says that some before them are not kept any more: ask about what waits.
    """

    events: tuple[EventView, ...]
    next: str
    missed: bool = False
