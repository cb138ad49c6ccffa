"""Immutable records of an approval and its items.

Everything a card shows, a decision changes and an execution needs is here. A change
returns a new record; only the store writes one.
"""

from __future__ import annotations

from collections.abc import Callable
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
    Person,
    Record,
    Result,
    RunRef,
    Tier,
    Verb,
    join,
)
from keyturn.gateway.protocol.strict_json import JsonObject

SHORT_CHARS = 8
"""How many characters it has."""


def short_id(approval_id: str) -> str:
    """Return the first characters of the random part of an approval's id.

    Two approvals may have one, so it finds approvals and never names one in a record.
    """
    # As in lifetimes.lua, by which the store finds the approvals.
    return approval_id.rpartition("_")[2][:SHORT_CHARS]


NOT_KNOWN = (
    "Its record was restored from an older copy, so whether it ran before is not known"
)


class Origin(Record):
    """Where in Slack the agent was asked; its last words go back there."""

    channel: str
    thread_ts: str


class Context(Record):
    """Where a call comes from; part of what is hashed.

    ``ns`` is the agent's checkpoint namespace: two subagents may use one
    ``tool_call_id`` and one ``message_id``, and only ``ns`` tells them apart.
    """

    tenant: str
    agent: str
    thread: str
    ns: str
    message_id: str
    tool_call_id: str

    def as_dict(self) -> dict[str, str]:
        """Return the plain object that goes into the action document."""
        return dict[str, str](self.__dict__)  # its fields are texts


class DecisionRecord(Record):
    """The word that ended an item's waiting: whose, when, and with which text.

    ``answers`` are those to the questions of a call, in order; ``text`` holds them
    beside the questions.
    """

    verb: Verb
    by: Person
    at_ms: int
    text: str = ""
    on_behalf_of: tuple[Person, ...] = ()
    answers: tuple[str, ...] = ()
    signed: Signature | None = None


class TriageResult(Record):
    """What triage, a model, thought of a call; it orders queues and decides nothing.

    Attributes:
        raised_to: the tier that it brought the call to; None when it raised nothing.
        score: how soon people should look, 0 to 100.
        rationale: the model's words, unverified; empty unless it raised.
    """

    raised_to: Tier | None = None
    score: int = Field(default=0, ge=0, le=100)
    rationale: str = ""


class Item(PolicyDecisionFields):
    """One call inside an approval.

    Attributes:
        floor: what it needs at least, while ``tier``, ``reasons`` and ``requirement``
            are stricter by a later evaluation; None when they are what was opened.
        revoked: why an authorization was taken back; kept when it was given again.
        lapses_at_ms: when the authorization ends by itself, by the store's clock.
        fence: fencing token of the newest attempt, from 1; 0 before the first.
        owner: the attempt that runs it; empty when none does.
        reconciled_fence: fence of the attempt that people reconciled last; 0: none.
        observations: what people found out about executions in doubt.
        finding: what people found at the last reconciliation.
        spot_check: whether it was right, asked after it ran; None: nobody was.
        late_result: what an executor reported after people had reconciled it.
        requests_before: what each window that counts requests held before this call, in
            millionths by its key: a request keeps its place in the row.
        effect: the same for calls with the same effect, by the last evaluation, or "".
        repeats_seen_ms: precedents up to then were shown before a decision on this
            version; 0: those of before the approval was opened.
        too_soon: approvals that came sooner than the policy accepts at once; they count
            for nothing, and the next one of their person is not asked again.
        past, is_frozen: earlier calls, and whether a freeze stops it; never stored.
        original_args: what the model wrote, where its tool reads something else.
        spelled: the requested arguments in the order and number types of the agent;
            None where they are those of the canonical document.
        edit_signed: the bot's signature of the edit.
        cover: the standing approval that authorized the call as it opened, if any.
        expires_at_ms: when its wait ends, where that is not when its approval says: it
            was raised, or went back to people. 0: as the approval says.
        latest_at_ms: the latest end that it can be given, since then; 0: before.
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

    @property
    def args(self) -> JsonObject:
        """Return the arguments that would run now."""
        return digest.action_args(self.action)

    @property
    def questions(self) -> tuple[Question, ...]:
        """Return what the agent asks people; nothing for any other call."""
        return questions_in(self.args) if self.is_question else ()

    @property
    def bounds(self) -> Bounds | None:
        """Return what a standing approval allows; None for any other item."""
        return Bounds.model_validate(self.args) if self.is_standing else None

    @property
    def requested_args(self) -> JsonObject:
        """Return the arguments that the agent asked for."""
        return digest.action_args(self.requested)

    @property
    def action_hash(self) -> str:
        """Return the hash of what would run now."""
        return digest.action_hash(self.action)

    @property
    def votes_now(self) -> tuple[Vote, ...]:
        """Return the votes for what would run now."""
        now = self.action_hash
        return tuple(vote for vote in self.votes if vote.action_hash == now)

    @property
    def has_failed(self) -> bool:
        """Return whether its doubt is about a failure that the tool itself reported."""
        is_doubt = self.state is ItemState.IN_DOUBT
        return is_doubt and self.result is not None and not self.result.ok

    @property
    def observations_now(self) -> tuple[Observation, ...]:
        """Return what people found out about the latest attempt."""
        return tuple(one for one in self.observations if one.fence == self.fence)

    @property
    def is_contradicted(self) -> bool:
        """Return whether the executor reported something else than people had found."""
        if self.late_result is None or self.finding is None:
            return False
        is_as_found = self.late_result.ok is (self.finding is Finding.EXECUTED)
        return self.finding is Finding.RERUN or not is_as_found

    @property
    def is_restored(self) -> bool:
        """Return whether more may have happened to it than this record says."""
        return self.revoked is not None and self.revoked.is_restored

    @property
    def has_started(self) -> bool:
        """Return whether its tool may have acted: it was claimed and perhaps used."""
        return self.fence > (self.revoked.unused_fence if self.revoked else 0)

    @property
    def is_pending(self) -> bool:
        """Return whether a person still has to decide."""
        return self.state is ItemState.PENDING

    @property
    def may_run(self) -> bool:
        """Return whether it may start now, or once people have decided."""
        return self.state in {ItemState.PENDING, ItemState.AUTHORIZED}

    @property
    def is_to_be_checked(self) -> bool:
        """Return whether a spot check of it waits for an answer."""
        check = self.spot_check
        return check is not None and bool(check.asked_at_ms) and check.by is None

    @property
    def is_auto_approved(self) -> bool:
        """Return whether it opens authorized: by its tier, or a standing approval."""
        return self.tier.is_auto_approved or self.cover is not None

    def moved(self, transition: Transition, now_ms: int, **changes: object) -> Item:
        """Return the item after a transition at this time, with what else it changes.

        Raises:
            IllegalTransition: when the table has no such row.
        """
        state = lifecycle.advance(self.state, transition)
        return self.with_(state=state, changed_at_ms=now_ms, **changes)


class Waiting(Record):
    """How an approval passes its time: when people are reminded, who is called later.

    Times are milliseconds from the opening, 0 for never. ``roles`` may vote from the
    start; their holders are only asked later. ``channels`` are told.
    """

    remind_at_ms: int = 0
    escalate_at_ms: int = 0
    roles: tuple[Role, ...] = ()
    channels: tuple[str, ...] = ()

    @property
    def escalate_to(self) -> tuple[str, ...]:
        """Return the names of everybody who is called later."""
        return (*(role.name for role in self.roles), *self.channels)


class Acknowledgement(Record):
    """Who said "I'm on it", and until when that stands; nobody else is kept out."""

    by: Person
    until_ms: int


class Remark(Record):
    """What somebody reported of calls; ``text`` is theirs and may be empty."""

    by: Person
    text: str = ""
    at_ms: int = 0


class Inquiry(Record):
    """One question of a reviewer, or one reply of the requester.

    They are kept in the order in which they came: a reply is to all that was asked
    before it. They are evidence for reviewers, and decide nothing.

    Attributes:
        by: who wrote it.
        text: what they wrote.
        at_ms: when it was recorded, by the store's clock.
        call: index of the call that a question is about; None: all of the card.
        reply_ts: the Slack message in which a reply came, by which one that is
            delivered again is known; "" for a question.
    """

    by: Person
    text: str
    at_ms: int
    call: int | None = None
    reply_ts: str = ""

    @property
    def is_reply(self) -> bool:
        """Return whether the requester wrote it."""
        return bool(self.reply_ts)

    def is_about(self, call: int) -> bool:
        """Return whether it belongs to what is shown of one call."""
        return self.call in {None, call}


class Approval(Record):
    """One request on one card: items, their order, a version, an expiry.

    ``version`` rises with every edit and is what buttons carry; ``rev`` rises with
    every change and is what the store compares. ``recent_requests`` says how many calls
    the agent had asked people for in the ten minutes before, this card's first
    included; 0 when nobody counted. ``expires_at_ms`` is when the first of the calls
    that wait expires; `timing.end_of` is the end of each. All times are Unix
    milliseconds of the store's clock. ``nested_in`` is the run around an agent inside
    another one's tool; ``answered``, what people answered that run before. ``uses`` and
    ``checked_at_ms``, when Slack last confirmed its givers' roles, are of a standing
    approval. ``task`` is what the agent says it is part of. An agent that
    ``resumes_itself`` runs in a process of its own, and no job brings it back.
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
    recent_requests: int = 0
    remarks: tuple[Remark, ...] = ()
    inquiries: tuple[Inquiry, ...] = ()
    uses: tuple[Use, ...] = ()
    checked_at_ms: int = 0
    items: tuple[Item, ...] = Field(min_length=1)

    @property
    def run_ref(self) -> RunRef:
        """Return the run that this belongs to."""
        return self.nested_in or RunRef(agent=self.agent, thread=self.thread)

    @property
    def state(self) -> ApprovalState:
        """Return open while an item is pending, else closed."""
        return lifecycle.approval_state([item.state for item in self.items])

    @property
    def digest(self) -> str:
        """Return the batch digest over the items as they would run now."""
        # Of what would run now: an edit of one call makes an older "Approve all"
        # another batch.
        rows = [(item.id, item.action_hash) for item in self.items]
        return digest.batch_digest(self.id, rows)

    @property
    def is_auto_approved(self) -> bool:
        """Return whether all calls are auto-approved: its card is a notification."""
        return all(item.is_auto_approved for item in self.items)

    @property
    def is_question(self) -> bool:
        """Return whether it asks people for answers: its one item is no call to run."""
        return any(item.is_question for item in self.items)

    @property
    def is_standing(self) -> bool:
        """Return whether it is a standing approval: its one item is no call to run."""
        return any(item.is_standing for item in self.items)

    @property
    def covers(self) -> tuple[Cover, ...]:
        """Return which standing approval covered each of its calls."""
        return tuple(item.cover for item in self.items if item.cover is not None)

    @property
    def is_batch(self) -> bool:
        """Return whether its card is for several calls, also if one is left of them."""
        first = next(iter(self.items))
        return len(self.items) > 1 or first.id.rpartition(".")[0] != self.id

    def with_roles(self, change: Callable[[Item, Role], Role]) -> Approval:
        """Return a copy with changed roles, those that are called later included.

        These are changed as for the call of the highest tier that waits.

        Args:
            change: returns a role, as it is asked about an item, with another
                ``asking``.
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
        """Return a copy in which these items stand at their own index."""
        # By index and never by order: a caller may name two items in any order.
        by_index = {item.index: item for item in items}
        rows = tuple(by_index.get(item.index, item) for item in self.items)
        return self.with_(items=rows, **changes)


def item_id(approval_id: str, index: int) -> str:
    """Return the id of an item; it carries the approval and so routes itself."""
    return f"{approval_id}.{index}"


def approval_of(item: str) -> tuple[str, int]:
    """Split an item id into its approval's id and its index.

    Raises:
        ValueError: when the text is not an item id.
    """
    approval, dot, index = item.rpartition(".")
    # isascii, because isdigit is true of digits that int() reads and no id has: "٣".
    if not (dot and approval and index.isascii() and index.isdigit()):
        raise ValueError(f"{item[:80]!r} is not an item id")
    return approval, int(index)
