"""Immutable records of an approval and its items.

They contain all data that cards, decisions and executions need. A change returns a new
record; only the store writes one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from pydantic import Field

from keyturn.gateway.approvals import lifecycle
from keyturn.gateway.approvals.lifecycle import ApprovalState, Transition
from keyturn.gateway.approvals.policy_decision import PolicyDecisionFields
from keyturn.gateway.approvals.precedents import Past
from keyturn.gateway.approvals.requirement import (
    Floor,
    Observation,
    Revocation,
    Role,
    Signature,
    SpotCheck,
    Vote,
)
from keyturn.gateway.approvals.similar import Bounds, Cover, Use
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.questions import Answered, Question, questions_in
from keyturn.gateway.protocol.records import (
    EditRecord,
    Finding,
    ItemState,
    NotTaken,
    Person,
    Record,
    Result,
    RunRef,
    Tier,
    Untold,
    Verb,
    join,
)
from keyturn.gateway.protocol.strict_json import JsonObject

SHORT_CHARS = 8
"""Length of a short id."""


def short_id(approval_id: str) -> str:
    """Return the first characters of the random part of an approval's id.

    Two approvals may share one: use it to find approvals, never as a key in a record.
    """
    # lifetimes.lua computes the same to find approvals in the store.
    return approval_id.rpartition("_")[2][:SHORT_CHARS]


NOT_KNOWN = (
    "Its record was restored from an older copy, so whether it ran before is not known"
)


class Origin(Record):
    """The Slack thread of the request; the agent's final answer is posted there."""

    channel: str
    thread_ts: str


class Context(Record):
    """Origin of a call; part of the hashed action.

    ``ns`` is the agent's checkpoint namespace: two subagents may use one
    ``tool_call_id`` and one ``message_id``, and only ``ns`` differs.
    """

    tenant: str
    agent: str
    thread: str
    ns: str
    message_id: str
    tool_call_id: str

    def as_dict(self) -> dict[str, str]:
        """Return the plain object for the action document."""
        return dict[str, str](self.__dict__)  # all fields are texts


class DecisionRecord(Record):
    """The decision that ended an item's wait: verb, person, time and text.

    ``answers`` are the answers to the questions of a call, in order; ``text`` contains
    them together with the questions.
    """

    verb: Verb
    by: Person
    at_ms: int
    text: str = ""
    on_behalf_of: tuple[Person, ...] = ()
    answers: tuple[str, ...] = ()
    signed: Signature | None = None


class TriageResult(Record):
    """Result of triage by a model; it orders queues and decides nothing.

    Attributes:
        raised_to: the tier that triage raised the call to; None if it raised nothing.
        score: urgency for reviewers, 0 to 100.
        rationale: the model's words, unverified; empty unless it raised.
    """

    raised_to: Tier | None = None
    score: int = Field(default=0, ge=0, le=100)
    rationale: str = ""


class HandOver(Record):
    """What is known about a decision that was handed to another program.

    Attributes:
        problem: why the program did not take it; "" if it did.
        detail: the program's error: untrusted.
        reported: the program's report that the call ran or failed: unverified.
        again_by: the person who wants the agent to ask again; None: nobody.
        asked_again_ms: when the agent asked again; 0: it did not.
        again_detail: why it could not ask again: untrusted.
    """

    problem: NotTaken = ""
    detail: str = ""
    reported: Result | None = None
    again_by: Person | None = None
    asked_again_ms: int = 0
    again_detail: str = ""


class Item(PolicyDecisionFields):
    """One call inside an approval.

    Attributes:
        floor: minimum need, while a later evaluation makes ``tier``, ``reasons`` and
            ``requirement`` stricter; None while they are those of the opening.
        revoked: why an authorization was taken back; kept after a new authorization.
        lapses_at_ms: when the authorization ends by itself, by the store's clock.
        fence: fencing token of the newest attempt, from 1; 0 before the first.
        owner: the attempt that runs it; empty if none does.
        reconciled_fence: fence of the last reconciled attempt; 0: none.
        observations: findings of people about executions in doubt.
        finding: result of the last reconciliation.
        spot_check: the question, after the run, whether the call was right; None: not
            asked.
        late_result: an executor's report after people had reconciled the call.
        requests_before: total of each request-counting window before this call, in
            millionths, by the window: a request keeps its position.
        effect: equal for calls with the same effect, by the last evaluation, or "".
        repeats_seen_ms: a decision on this version has seen the precedents up to this
            time; 0: those from before the approval was opened.
        too_soon: approvals that came sooner than the policy accepts. They do not count;
            the next approval by the same person does.
        past, is_frozen: earlier calls, and whether a freeze stops it; never stored.
        original_args: the model's arguments, if its tool reads them differently.
        spelled: the requested arguments in the agent's order and number types; None if
            these match the canonical document.
        edit_signed: the bot's signature of the edit.
        cover: the standing approval that authorized the call at its opening, if any.
        expires_at_ms: end of its wait, if that differs from the approval's: the call
            was raised, or went back to people. 0: the approval's end.
        latest_at_ms: the latest possible end since then; 0: not set.
        handed_to: name of the program that runs it by itself; "" if its caller runs it.
        handed: what is known of the hand-over.
        untold: what its agent does not learn of a decision.
    """

    id: str
    index: int
    ctx: Context
    tool: str
    requested: str
    action: str
    state: ItemState = ItemState.PENDING
    changed_at_ms: int = 0
    original_args: JsonObject | None = None
    spelled: JsonObject | None = None
    cover: Cover | None = None
    expires_at_ms: int = 0
    latest_at_ms: int = 0
    triage: TriageResult | None = None
    requests_before: dict[str, int] = Field(default_factory=dict)
    floor: Floor | None = None
    effect: str = ""
    repeats_seen_ms: int = 0
    too_soon: tuple[Vote, ...] = ()
    past: Past = Past()
    is_frozen: bool = False
    principals: tuple[Person, ...] = ()
    votes: tuple[Vote, ...] = ()
    edit: EditRecord | None = None
    edit_signed: Signature | None = None
    decision: DecisionRecord | None = None
    revoked: Revocation | None = None
    lapses_at_ms: int = 0
    fence: int = 0
    owner: str = ""
    reconciled_fence: int = 0
    claimed_until_ms: int = 0
    result: Result | None = None
    observations: tuple[Observation, ...] = ()
    finding: Finding | None = None
    late_result: Result | None = None
    spot_check: SpotCheck | None = None
    handed_to: str = ""
    handed: HandOver = HandOver()
    untold: tuple[Untold, ...] = ()

    @property
    def args(self) -> JsonObject:
        """Return the arguments that would run now."""
        return digest.action_args(self.action)

    @property
    def questions(self) -> tuple[Question, ...]:
        """Return the agent's questions to people; empty for any other call."""
        return questions_in(self.args) if self.is_question else ()

    @property
    def bounds(self) -> Bounds | None:
        """Return the bounds of a standing approval; None for any other item."""
        return Bounds.model_validate(self.args) if self.is_standing else None

    @property
    def requested_args(self) -> JsonObject:
        """Return the arguments that the agent requested."""
        return digest.action_args(self.requested)

    @property
    def action_hash(self) -> str:
        """Return the hash of the action that would run now."""
        return digest.action_hash(self.action)

    @property
    def votes_now(self) -> tuple[Vote, ...]:
        """Return the votes for the action that would run now."""
        now = self.action_hash
        return tuple(vote for vote in self.votes if vote.action_hash == now)

    @property
    def has_failed(self) -> bool:
        """Return True if it is in doubt because the tool itself reported a failure."""
        is_doubt = self.state is ItemState.IN_DOUBT
        return is_doubt and self.result is not None and not self.result.ok

    @property
    def observations_now(self) -> tuple[Observation, ...]:
        """Return the observations about the latest attempt."""
        return tuple(one for one in self.observations if one.fence == self.fence)

    @property
    def is_contradicted(self) -> bool:
        """Return True if the executor's late report contradicts the finding."""
        if self.late_result is None or self.finding is None:
            return False
        is_as_found = self.late_result.ok is (self.finding is Finding.EXECUTED)
        return self.finding is Finding.RERUN or not is_as_found

    @property
    def is_restored(self) -> bool:
        """Return True if the record comes from an older copy and may miss events."""
        return self.revoked is not None and self.revoked.is_restored

    @property
    def has_started(self) -> bool:
        """Return True if its tool may have acted: it was claimed and perhaps used."""
        return self.fence > (self.revoked.unused_fence if self.revoked else 0)

    @property
    def is_pending(self) -> bool:
        """Return True if a person still has to decide."""
        return self.state is ItemState.PENDING

    @property
    def may_run(self) -> bool:
        """Return True if it may start now, or after a decision."""
        return self.state in {ItemState.PENDING, ItemState.AUTHORIZED}

    def is_left_at(self, now_ms: int) -> bool:
        """Return True if its hand-over began, and its connector is silent."""
        is_begun = self.state is ItemState.HANDING_OVER
        return is_begun and now_ms >= self.claimed_until_ms

    @property
    def was_refused(self) -> bool:
        """Return True if its program refused or failed, and may ask again."""
        is_refused = self.handed.problem in {"refused", "failed"}
        return self.state is ItemState.NOT_TAKEN and is_refused

    @property
    def is_to_be_asked_again(self) -> bool:
        """Return True while a person waits for its agent to ask again."""
        handed = self.handed
        is_wanted = handed.again_by is not None and not handed.asked_again_ms
        return self.was_refused and is_wanted

    @property
    def is_to_be_checked(self) -> bool:
        """Return True if its spot check waits for an answer."""
        check = self.spot_check
        return check is not None and bool(check.asked_at_ms) and check.by is None

    @property
    def is_auto_approved(self) -> bool:
        """Return True if it opens authorized, by its tier or a standing approval."""
        return self.tier.is_auto_approved or self.cover is not None

    def moved(self, transition: Transition, now_ms: int, **changes: object) -> Item:
        """Return the item after a transition at this time, with further changes.

        Raises:
            IllegalTransition: when the table has no such row.
        """
        state = lifecycle.advance(self.state, transition)
        return self.with_(state=state, changed_at_ms=now_ms, **changes)


class Waiting(Record):
    """Reminders and escalation of a waiting approval.

    Times are milliseconds from the opening, 0 for never. ``roles`` may vote from the
    start, but are notified only at the escalation. ``channels`` are notified with them.
    """

    remind_at_ms: int = 0
    escalate_at_ms: int = 0
    roles: tuple[Role, ...] = ()
    channels: tuple[str, ...] = ()

    @property
    def escalate_to(self) -> tuple[str, ...]:
        """Return the names of all roles and channels of the escalation."""
        return (*(role.name for role in self.roles), *self.channels)


class Acknowledgement(Record):
    """An "I'm on it" of a person, until a time; others may still decide.

    With ``is_snooze`` they are reminded at that time.
    """

    by: Person
    until_ms: int
    is_snooze: bool = False


class Remark(Record):
    """A person's report about calls; ``text`` is theirs and may be empty."""

    by: Person
    text: str = ""
    at_ms: int = 0


class Inquiry(Record):
    """One question of a reviewer, or one reply of the requester.

    Inquiries are kept in order of arrival: a reply answers all earlier questions. They
    are evidence for reviewers, and decide nothing.

    Attributes:
        by: the author.
        text: the author's words.
        at_ms: when it was recorded, by the store's clock.
        call: index of the call that a question is about; None: the whole card.
        reply_ts: the Slack message of a reply, to detect a second delivery; "" for a
            question.
    """

    by: Person
    text: str
    at_ms: int
    call: int | None = None
    reply_ts: str = ""

    @property
    def is_reply(self) -> bool:
        """Return True if the requester wrote it."""
        return bool(self.reply_ts)

    def is_about(self, call: int) -> bool:
        """Return True if it belongs to this call or to the whole card."""
        return self.call in {None, call}


class Approval(Record):
    """One request on one card: items, their order, a version, an expiry.

    ``version`` rises with every edit and is carried by buttons; ``rev`` rises with
    every change and is compared by the store. ``recent_requests`` is the number of
    calls for which the agent asked people in the ten minutes before, including the
    first of this card; 0 if they were not counted. ``expires_at_ms`` is the first
    expiry among the waiting calls; `timing.end_of` is the end of each. All times are
    Unix milliseconds of the store's clock. ``nested_in`` is the run around an agent
    inside another agent's tool; ``answered`` are the earlier answers of people to that
    run. ``uses`` and ``checked_at_ms`` (the last time that Slack confirmed the givers'
    roles) are for a standing approval. ``task`` is the agent's name for the surrounding
    task. An agent that ``resumes_itself`` runs in a separate process, and no job
    resumes it. ``trace`` is the ``traceparent`` of the submission, "" without a tracer.
    With ``caller_gone``, the program that waited for the calls has gone,
    and no other one waits now.
    """

    id: str
    tenant: str
    agent: str
    thread: str
    nested_in: RunRef | None = None
    ns: str = ""
    message_id: str
    version: int = 1
    rev: int = 1
    channel: str
    created_at_ms: int = 0
    expires_at_ms: int = 0
    ttl_ms: int
    waiting: Waiting = Waiting()
    reminded_at_ms: int = 0
    escalated_at_ms: int = 0
    acknowledged: Acknowledgement | None = None
    requester: Person | None = None
    principals: tuple[Person, ...] = ()
    origin: Origin | None = None
    policy_digest: str
    says: str = ""
    task: str = ""
    resumes_itself: bool = False
    answered: tuple[Answered, ...] = ()
    caller_gone: bool = False
    trace: str = ""
    recent_requests: int = 0
    remarks: tuple[Remark, ...] = ()
    inquiries: tuple[Inquiry, ...] = ()
    uses: tuple[Use, ...] = ()
    checked_at_ms: int = 0
    items: tuple[Item, ...] = Field(min_length=1)

    @property
    def run_ref(self) -> RunRef:
        """Return the run of this approval."""
        return self.nested_in or RunRef(agent=self.agent, thread=self.thread)

    @property
    def state(self) -> ApprovalState:
        """Return open while an item is pending, else closed."""
        is_open = any(item.is_pending for item in self.items)
        return ApprovalState.OPEN if is_open else ApprovalState.CLOSED

    @property
    def digest(self) -> str:
        """Return the batch digest over the items as they would run now."""
        # Hash the current actions: after an edit of one call, an older "Approve all"
        # refers to another batch.
        rows = [(item.id, item.action_hash) for item in self.items]
        return digest.batch_digest(self.id, rows)

    @property
    def is_auto_approved(self) -> bool:
        """Return True if all calls are auto-approved: the card is a notification."""
        return all(item.is_auto_approved for item in self.items)

    @property
    def is_question(self) -> bool:
        """Return True if it asks people for answers: its one item is no call to run."""
        return any(item.is_question for item in self.items)

    @property
    def is_standing(self) -> bool:
        """Return True if it is a standing approval: its one item is no call to run."""
        return any(item.is_standing for item in self.items)

    @property
    def covers(self) -> tuple[Cover, ...]:
        """Return the standing approvals that covered its calls."""
        return tuple(item.cover for item in self.items if item.cover is not None)

    @property
    def is_batch(self) -> bool:
        """Return True if its card is for several calls, even if only one is left."""
        first = next(iter(self.items))
        return len(self.items) > 1 or first.id.rpartition(".")[0] != self.id

    def with_roles(self, change: Callable[[Item, Role], Role]) -> Approval:
        """Return a copy with changed roles, including those of the escalation.

        The roles of the escalation change as for the waiting call of the highest tier.

        Args:
            change: returns the role of an item with another ``asking``.
        """
        items = tuple(
            item.with_(requirement=item.requirement.with_roles(partial(change, item)))
            for item in self.items
        )
        waiting = [item for item in items if item.is_pending] or [*items]
        top = join(*(item.tier for item in waiting))
        highest = next(item for item in waiting if item.tier is top)
        roles = tuple(change(highest, role) for role in self.waiting.roles)
        return self.with_(items=items, waiting=self.waiting.with_(roles=roles))

    def replacing(self, *items: Item, **changes: object) -> Approval:
        """Return a copy in which these items replace those with the same index."""
        # By index, not by order: a caller may pass two items in any order.
        by_index = {item.index: item for item in items}
        rows = tuple(by_index.get(item.index, item) for item in self.items)
        return self.with_(items=rows, **changes)


@dataclass(frozen=True)
class Concerned:
    """The users and user groups whom the pending calls of an approval concern.

    They may decide a call, requested it, or edited it.
    """

    users: AbstractSet[str]
    groups: AbstractSet[str]

    def includes(self, people: Concerned) -> bool:
        """Return whether some of these people are among them."""
        return bool(self.users & people.users or self.groups & people.groups)


def concerned(approval: Approval) -> Concerned | None:
    """Return the people whom an approval concerns; None without a pending call."""
    if not any(item.is_pending for item in approval.items):
        return None
    users, groups = {one.user for one in approval.principals}, set[str]()
    if approval.requester:
        users.add(approval.requester.user)
    for item in approval.items:
        if not item.is_pending:
            continue
        for role in item.requirement.roles:
            users.update(role.users)
            groups.update(role.usergroups)
        users.update(one.user for one in item.principals)
        if item.edit:
            users.add(item.edit.by.user)
    return Concerned(users, groups)


def item_id(approval_id: str, index: int) -> str:
    """Return the id of an item; it contains the approval's id."""
    return f"{approval_id}.{index}"


_ITEM_ID = re.compile(r"(.+)\.([0-9]{1,9})")


def approval_of(item: str) -> tuple[str, int]:
    """Split an item id into its approval's id and its index.

    Another text gets ``""``, the id of no approval.
    """
    found = _ITEM_ID.fullmatch(item)
    return (found[1], int(found[2])) if found else ("", 0)


# Show several approvals as one: the record behind a collected card.
#
# A collected card shows calls of separate approvals, each with its own id, hash,
# deadline and thread. The record made here is never stored, and decisions do not apply
# to it. Its digest binds a click to exactly these calls in this order, and each call is
# decided in its own approval.

LEFT = 1_000_000
"""More than any version or rev of an approval."""


def collected(card: str, members: Sequence[Approval], *, left: int = 0) -> Approval:
    """Return the record of a collected card.

    Args:
        card: its id.
        members: the approvals on the card, in order; of each it shows one call, which
            is pending if any of its calls is.
        left: number of approvals that left it for cards of their own.
    """
    first = members[0]
    people = [person for one in members for person in one.principals]
    waiting = [one for one in members if any(item.is_pending for item in one.items)]
    is_one_place = all(one.origin == first.origin for one in members)
    return first.with_(
        id=card,
        # Both only rise, even when a member leaves with its numbers: an older version
        # of the card is never taken for a newer one.
        version=1 + sum(one.version - 1 for one in members) + left * LEFT,
        rev=sum(one.rev for one in members) + left * LEFT,
        created_at_ms=min(one.created_at_ms for one in members),
        expires_at_ms=min(one.expires_at_ms for one in waiting or members),
        reminded_at_ms=max(one.reminded_at_ms for one in members),
        escalated_at_ms=max(one.escalated_at_ms for one in members),
        # The count before the first call of the card.
        recent_requests=first.recent_requests,
        principals=tuple(dict.fromkeys(people)),
        # These belong to one thread; the card covers several.
        acknowledged=None,
        caller_gone=False,
        origin=first.origin if is_one_place else None,
        says="",
        remarks=(),
        inquiries=(),
        # An item keeps its id, which contains its approval's id; only its index
        # changes.
        items=tuple(
            item.with_(
                index=place, expires_at_ms=item.expires_at_ms or one.expires_at_ms
            )
            for place, one in enumerate(members)
            for item in sorted(one.items, key=lambda item: not item.is_pending)[:1]
        ),
    )


def is_collected(approval: Approval) -> bool:
    """Return True if this is the record of a collected card."""
    return approval_of(approval.items[0].id)[0] != approval.id
