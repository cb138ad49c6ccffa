"""Approvals and their events, as agents and their owners read them."""

from __future__ import annotations

from datetime import datetime

from pydantic import JsonValue

from keyturn.gateway.protocol.digest import BusinessState
from keyturn.gateway.protocol.records import (
    Effect,
    Evidence,
    ItemState,
    NotTaken,
    Person,
    Record,
    RunRef,
    Tier,
    Verb,
)
from keyturn.gateway.protocol.strict_json import JsonObject

PAGE = 50
"""Default number of approvals on a page."""

MOST_OF_A_PAGE = 200


class DecisionView(Record):
    """The decision that ended a call's wait: its author, its time and its text."""

    verb: Verb
    by: Person
    at: datetime
    text: str = ""


class RoleView(Record):
    """A role with its holders: ids of Slack users and user groups."""

    name: str
    users: tuple[str, ...] = ()
    usergroups: tuple[str, ...] = ()


class ClauseView(Record):
    """A number of votes by different people who have one of these roles."""

    votes: int
    of: tuple[str, ...]


class VoteView(Record):
    """One person's approval of a call in its current form, with their ``reason``."""

    by: Person
    roles: tuple[str, ...]
    at: datetime
    reason: str = ""
    on_behalf_of: tuple[Person, ...] = ()


class ChangeView(Record):
    """An argument changed by an edit; a side without it is None."""

    name: str
    before: JsonValue = None
    after: JsonValue = None


class EditView(Record):
    """An edit of a call by a person: time, reason, and each changed argument."""

    by: Person
    at: datetime
    reason: str = ""
    changes: tuple[ChangeView, ...]


class PrecedentView(Record):
    """An earlier call with the same effect, and its outcome.

    ``agent``, ``by`` and ``reason`` are empty for calls of agents that the API key does
    not cover.
    """

    state: ItemState
    at: datetime
    agent: str = ""
    by: tuple[Person, ...] = ()
    reason: str = ""


class WindowView(Record):
    """The total of the other calls in a window of the policy."""

    window: str
    by: str = ""
    total: str
    within_s: int


class HandedView(Record):
    """How the hand-over of a call to another program ended.

    Attributes:
        taken: the program took the decision.
        problem: why it did not; "" if it did.
        detail: the program's error, unverified.
        reported_ok: whether the program reports that the call ran; None: no report.
        report: its words, unverified.
    """

    taken: bool
    problem: NotTaken = ""
    detail: str = ""
    reported_ok: bool | None = None
    report: str = ""


class CallView(Record):
    """One call of an approval.

    Texts and arguments are unverified data. ``args``, and members whose name begins
    with ``agent_``, are the agent's own words.

    Attributes:
        id: id of the call everywhere in this API.
        index: its position on the card.
        tool: the tool that would run.
        tool_call_id: the id that the model gave it.
        args: its arguments; values that the policy redacts are hidden.
        action_hash: hash of the exact action; a decision names it.
        state: its current state.
        tier: its tier.
        reasons: the reasons for the tier.
        allow: the decisions that people may make.
        expires_at: the end of its wait.
        changed_at: when it got its current state.
        agent_description: the agent's description of it.
        evidence: the agent's sources for it, unverified.
        agent_wrote: the model's original text, where the tool reads it differently.
        description: the policy's description, filled with the arguments.
        link: address on a host that the policy names, filled with the arguments.
        effect: the effect of the tool.
        idempotent: it may be repeated under the same key.
        requires_reason: the decisions that need a reason.
        roles: the roles that may vote.
        needs: the requirement: all of these clauses have to be met.
        missing: the unmet clauses, each with the number of missing votes.
        votes: the approvals of its current form.
        editor_may_vote: an editor of the call may approve it as well.
        is_frozen: a freeze stops it from running.
        revoked: why an approval was taken back or ended by itself.
        state_asked: the business state at the request, under ``value``.
        state_now: the business state with which it would run.
        triage: a model's opinion of it, unverified.
        same_by: the arguments by which the policy compares calls; empty for all.
        precedents: earlier calls with the same effect, newest first.
        windows: totals of the other calls in the same windows.
        edit: the changes by people.
        approvals: number of people who have approved its current form.
        is_edited: people changed its arguments.
        decision: the decision that ended its wait.
        ok: whether it ran without an error; None before it ran.
        handed_to: the program that runs it by itself; "" if the agent's process runs
            it under a claim.
        handed: how the hand-over ended; None before that, and for all other calls.
        ask_again: a person wants the agent to ask again, after it refused the decision.
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
    evidence: tuple[Evidence, ...] = ()
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
    handed_to: str = ""
    handed: HandedView | None = None
    ask_again: bool = False


class ApprovalView(Record):
    """One request on one card.

    ``version`` rises with every edit, and a decision names it. ``run`` is the outermost
    agent and its thread. ``ns`` and ``message_id`` are those of the turn: its lane, and
    its message. ``is_waiting`` is true while one of its calls waits for
    people. ``digest`` binds all calls in this order. ``agent_says`` is the model's
    text, unverified. ``principals`` are all people who spoke in the run; they cannot
    decide on it. A single approval has the current state of policy and store. In a
    list, approvals are as stored, without precedents and windows.
    """

    id: str
    agent: str
    thread: str
    ns: str = ""
    message_id: str = ""
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
    """A page of the queue; ``next`` is the cursor of the next page, "" at the end.

    Approvals outside this key's scope are filtered out, so a page before the end may be
    empty.
    """

    approvals: tuple[ApprovalView, ...]
    next: str = ""


class EventView(Record):
    """A change of a call.

    Attributes:
        id: id of this event, and the cursor for the events after it.
        name: such as ``item.authorized``.
        agent: the agent of the call.
        thread: its thread.
        run: the outermost agent and its thread, which has to be resumed.
        approval: id of the approval.
        item: id of the call; "" for the whole approval.
        tool: the call's tool.
        state: the state of the call after the event.
        at: time of the event.
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
    """Events in order; ``next`` is the cursor after the last one.

    ``missed`` is true if older events were dropped; read the waiting approvals then.
    """

    events: tuple[EventView, ...]
    next: str
    missed: bool = False
