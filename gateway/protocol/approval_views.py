"""Approvals, and what happens to them, as agents and their owners read them."""

from __future__ import annotations

from datetime import datetime

from pydantic import JsonValue

from keyturn.gateway.protocol.business_state import BusinessState
from keyturn.gateway.protocol.records import (
    Effect,
    ItemState,
    Person,
    Record,
    RunRef,
    Tier,
    Verb,
)
from keyturn.gateway.protocol.strict_json import JsonObject

PAGE = 50
"""Approvals of a page where nobody says how many."""

MOST_OF_A_PAGE = 200


class DecisionView(Record):
    """The word that ended the wait of a call: whose, when, and with which text."""

    verb: Verb
    by: Person
    at: datetime
    text: str = ""


class RoleView(Record):
    """A role and who holds it: ids of Slack users and user groups."""

    name: str
    users: tuple[str, ...] = ()
    usergroups: tuple[str, ...] = ()


class ClauseView(Record):
    """So many different people who hold one of these roles."""

    votes: int
    of: tuple[str, ...]


class VoteView(Record):
    """One person's approval of a call as it is now; ``reason`` is theirs."""

    by: Person
    roles: tuple[str, ...]
    at: datetime
    reason: str = ""
    on_behalf_of: tuple[Person, ...] = ()


class ChangeView(Record):
    """An argument that an edit changed; a side without it is None."""

    name: str
    before: JsonValue = None
    after: JsonValue = None


class EditView(Record):
    """What a person changed in a call: who, when, why, and each argument."""

    by: Person
    at: datetime
    reason: str = ""
    changes: tuple[ChangeView, ...]


class PrecedentView(Record):
    """An earlier call with the same effect, and how it ended.

    ``agent``, ``by`` and ``reason`` are left out of calls of agents for which the key
    does not speak.
    """

    state: ItemState
    at: datetime
    agent: str = ""
    by: tuple[Person, ...] = ()
    reason: str = ""


class WindowView(Record):
    """What the other calls in a window of the policy amount to."""

    window: str
    by: str = ""
    total: str
    within_s: int


class CallView(Record):
    """One call of an approval.

    Texts and arguments are data, and nobody vouches for them. Members whose name begins
    with ``agent_`` are the agent's own words, and so are ``args``.

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
        agent_description: what the agent says of it.
        agent_wrote: what the model wrote where the tool reads something else.
        description: the policy's description, filled with the arguments.
        link: to a host that the policy names, filled alike.
        effect: what the tool does to the world.
        idempotent: it may be repeated under the same key.
        requires_reason: the decisions that need a reason.
        roles: who may vote.
        needs: who must agree: all of these clauses have to hold.
        missing: the clauses that do not hold yet, with the votes that each lacks.
        votes: who has approved it as it is now.
        editor_may_vote: who edits it may approve it as well.
        is_frozen: a freeze keeps it from running.
        revoked: why an approval was taken back, or why it ended by itself.
        state_asked: the business state when it was asked for, under ``value``.
        state_now: the business state with which it would run.
        triage: a model's opinion of it, unverified.
        same_by: the arguments by which the policy compares calls; empty: all.
        precedents: earlier calls with the same effect, the newest first.
        windows: what other calls in the same windows amount to.
        edit: what people changed.
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
    agent_description: str = ""
    agent_wrote: str = ""
    description: str = ""
    link: str = ""
    effect: Effect = Effect.IRREVERSIBLE
    idempotent: bool = False
    requires_reason: tuple[Verb, ...] = ()
    roles: tuple[RoleView, ...] = ()
    needs: tuple[ClauseView, ...] = ()
    missing: tuple[ClauseView, ...] = ()
    votes: tuple[VoteView, ...] = ()
    editor_may_vote: bool = True
    is_frozen: bool = False
    revoked: str = ""
    state_asked: BusinessState | None = None
    state_now: BusinessState | None = None
    triage: str = ""
    same_by: tuple[str, ...] = ()
    precedents: tuple[PrecedentView, ...] = ()
    windows: tuple[WindowView, ...] = ()
    edit: EditView | None = None
    approvals: int = 0
    is_edited: bool = False
    decision: DecisionView | None = None
    ok: bool | None = None


class ApprovalView(Record):
    """One request on one card.

    ``version`` rises with every edit, and a decision names it. ``run`` is the outermost
    agent and its thread. ``is_waiting`` says that a call of it waits for people.
    ``digest`` binds all calls in this order. ``agent_says`` is the model's own text,
    unverified. ``principals`` are all who spoke in the run: they decide nothing of it.
    Read by its id, an approval is as the policy and the store have it now; in a list,
    it is as it was stored, without precedents and windows.
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
    principals: tuple[Person, ...] = ()
    policy_digest: str = ""
    digest: str = ""
    agent_says: str = ""
    agent_task: str = ""
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
