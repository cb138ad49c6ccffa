"""Apply one gesture to calls of several approvals, as a pure function.

Each call stands in an approval of its own, and each decision on it is the next version
of that approval. They are written together or not at all: if one call moved since the
reviewer saw it, or may not be decided like this, nothing is recorded. What the policy
escalated since then is left out, as in a batch (`batch_deciding`), and what repeats a
call that was approved since then or by the same gesture.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from twokey.gateway.approvals.batch_deciding import (
    NOTHING_CHOSEN,
    index_ranges,
    is_escalated,
    needs_one_more,
)
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.deciding import (
    ALREADY_APPROVED,
    NEEDS_OWN_DECISION,
    decide,
    not_as_seen,
)
from twokey.gateway.approvals.decisions import (
    Approve,
    Click,
    CollectionDecided,
    CollectionRefused,
    Edit,
    Invalid,
    Refusal,
    Reject,
    Reviewer,
    Unknown,
)
from twokey.gateway.approvals.events import (
    BATCH_MEMBER,
    COLLECTION,
    NEEDS_ONE,
    Event,
    EventName,
)
from twokey.gateway.approvals.policy_decision import PolicyDecision
from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.signed_decisions import DecisionKey
from twokey.gateway.protocol.states import ItemState

Choice = Approve | Edit | Reject

_BEHALF = "on_behalf_of"


@dataclass(frozen=True)
class SeenCollection:
    """What a reviewer saw of calls of several approvals.

    Attributes:
        collection: its id.
        digest: what sealed the calls that were shown.
        clicks: one for each call, by its number from 0; each of another approval.
    """

    collection: str
    digest: str
    clicks: Sequence[Click]

    def __post_init__(self) -> None:
        """Refuse two calls of one approval."""
        # Two versions of one approval cannot both be the next one.
        if len({click.approval for click in self.clicks}) < len(self.clicks):
            raise ValueError("A collection shows one call of each approval.")


@dataclass(frozen=True)
class CollectionChange:
    """The next versions of approvals, and what to tell the person who decided.

    Attributes:
        changes: by the number of the call.
        event: about all of it.
        outcome: to tell.
    """

    changes: Mapping[int, Change]
    event: Event
    outcome: CollectionDecided


@dataclass(frozen=True)
class _Decided:
    """What became of the calls of a gesture, by number."""

    changes: dict[int, Change]
    refusals: dict[int, Refusal]
    left_out: set[int]
    already: set[int]


def decide_together(  # noqa: PLR0913 - what a decision is made over, by name
    approvals: Mapping[str, Approval],
    seen: SeenCollection,
    decisions: Sequence[Choice | None],
    reviewer: Reviewer,
    *,
    now_ms: int,
    policies: Mapping[int, PolicyDecision],
    voters: Mapping[int, Sequence[Reviewer]],
    repeats: Collection[int] = (),
    key: DecisionKey | None = None,
) -> CollectionChange | CollectionRefused | Invalid:
    """Apply decisions to calls of several approvals, or say why none of them counts.

    Args:
        approvals: the records as they stand, by id; one that is missing is not known.
        seen: what the reviewer saw.
        decisions: on each call, by its number; None leaves it waiting, and nothing is
            asked of it.
        reviewer: who they are, resolved now.
        now_ms: the store's clock.
        policies: by number, what the current policy says of what would run.
        voters: by number, those who voted before, resolved now.
        repeats: calls that need another look once others of the gesture are approved.
        key: signs what they say, for the bot.
    """
    decided = _Decided({}, {}, set(), set())
    pairs = zip(seen.clicks, decisions, strict=True)
    for number, (click, decision) in enumerate(pairs):
        if decision is None:
            continue
        approval = approvals.get(click.approval)
        policy_now = policies.get(number)
        if approval is None:
            decided.refusals[number] = Unknown()
            continue
        # First: a call that moved is not left out, but stops all of them.
        if moved := not_as_seen(approval, click, now_ms):
            decided.refusals[number] = moved
            continue
        item = approval.items[click.index]
        if isinstance(decision, Approve) and (
            number in repeats or is_escalated(item, policy_now)
        ):
            decided.left_out.add(number)
            continue
        result = decide(
            approval,
            click.with_(is_shared=True),
            decision,
            reviewer,
            now_ms=now_ms,
            policy_now=policy_now,
            voters=voters.get(number, ()),
            key=key,
        )
        _note(decided, number, result)
    if decided.refusals:
        return CollectionRefused(refusals=decided.refusals)
    if not decided.changes:
        return _nothing_changes(decided)
    outcome = _outcome(decided, seen, decisions)
    return CollectionChange(
        {
            number: replace(change, events=_marked(change, seen))
            for number, change in decided.changes.items()
        },
        _event(decided.changes, seen, outcome),
        outcome,
    )


def _note(decided: _Decided, number: int, result: Change | Refusal) -> None:
    if isinstance(result, Change):
        decided.changes[number] = result
        # It waits on as a new version, whose card shows what it repeats.
        if result.repeated is not None:
            decided.left_out.add(number)
    elif result == ALREADY_APPROVED:
        decided.already.add(number)
    else:
        decided.refusals[number] = result


def _nothing_changes(decided: _Decided) -> CollectionRefused | Invalid:
    refusals: dict[int, Refusal] = dict.fromkeys(decided.left_out, NEEDS_OWN_DECISION)
    refusals |= dict.fromkeys(decided.already, ALREADY_APPROVED)
    return CollectionRefused(refusals=refusals) if refusals else NOTHING_CHOSEN


def _outcome(
    decided: _Decided, seen: SeenCollection, decisions: Sequence[Choice | None]
) -> CollectionDecided:
    after = {number: one.approval for number, one in decided.changes.items()}
    items = {
        number: approval.items[seen.clicks[number].index]
        for number, approval in after.items()
        if number not in decided.left_out
    }

    def of(kind: type[Choice], *states: ItemState) -> tuple[int, ...]:
        return tuple(
            number
            for number, item in items.items()
            if isinstance(decisions[number], kind)
            and (not states or item.state in states)
        )

    waiting = tuple(number for number, item in items.items() if item.is_pending)
    return CollectionDecided(
        approvals=after,
        approved=of(Approve),
        edited=of(Edit),
        rejected=of(Reject, ItemState.REJECTED),
        # Said by somebody who asked for the call, a rejection takes it back.
        withdrawn=of(Reject, ItemState.WITHDRAWN),
        waiting=waiting,
        needs_one=bool(waiting) and all(needs_one_more(items[n]) for n in waiting),
        left_out=tuple(sorted(decided.left_out)),
        already=tuple(sorted(decided.already)),
    )


def _marked(change: Change, seen: SeenCollection) -> tuple[Event, ...]:
    return tuple(
        event.with_(data=event.data | {BATCH_MEMBER: seen.digest})
        for event in change.events
    )


def _event(
    changes: Mapping[int, Change], seen: SeenCollection, outcome: CollectionDecided
) -> Event:
    """Return the entry about the whole gesture."""
    of_calls = [event for change in changes.values() for event in change.events]
    first = of_calls[0]
    parts = {
        "approved": outcome.approved,
        "edited": outcome.edited,
        "rejected": outcome.rejected,
        "withdrawn": outcome.withdrawn,
        "waiting": outcome.waiting,
        "left_out": outcome.left_out,
    }
    # In whose place somebody decides follows from the roles of each call.
    behalf = _each(
        person for one in of_calls for person in one.data.get(_BEHALF, "").split()
    )
    return Event(
        name=EventName.CALLS_DECIDED,
        tenant=first.tenant,
        agent=_shared(one.agent for one in of_calls),
        tool=_shared(one.tool for one in of_calls),
        action_hash=seen.digest,
        policy_digest=_shared(one.policy_digest for one in of_calls),
        actor=first.actor,
        roles=_each(role for one in of_calls for role in one.roles),
        reason=" · ".join(_each(one.reason for one in of_calls)),
        request_digest=first.request_digest,
        data={
            "gesture": first.data["gesture"],
            **({_BEHALF: " ".join(behalf)} if behalf else {}),
            COLLECTION: seen.collection,
            "digest": seen.digest,
            **{name: index_ranges(part) for name, part in parts.items() if part},
            **({NEEDS_ONE: "yes"} if outcome.needs_one else {}),
        },
    )


def _each(words: Iterable[str]) -> tuple[str, ...]:
    """Return each word once, in order, without empty ones."""
    return tuple(dict.fromkeys(filter(None, words)))


def _shared(words: Iterable[str]) -> str:
    """Return the word that all have; "" when they have several."""
    found = {*words}
    return found.pop() if len(found) == 1 else ""
