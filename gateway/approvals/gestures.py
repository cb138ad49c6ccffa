"""Apply one gesture to the calls that it decides, as a pure function.

A gesture is a list of (call, decision) by one person at one moment. A click on one call
is a list of one. A gesture on a card of several calls counts as a whole or not at all.
If one call changed since the reviewer saw the card, or the decision is not permitted,
nothing is recorded. There are two exceptions: calls that the policy escalated since
then, and calls that repeat another one. The gesture skips them, and the outcome names
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from keyturn.gateway.approvals import timing
from keyturn.gateway.approvals.changes import Change, first_of, raised_item
from keyturn.gateway.approvals.deciding import (
    ALREADY_APPROVED,
    NEEDS_OWN_DECISION,
    decide,
    no_such_item,
    not_as_seen,
)
from keyturn.gateway.approvals.decisions import (
    Approve,
    CallNow,
    Changed,
    Click,
    Decision,
    Edit,
    Expired,
    GestureDecided,
    GestureRefused,
    Invalid,
    Outcome,
    Refusal,
    Reject,
    Repeated,
    Reviewer,
    Stale,
    Unknown,
)
from keyturn.gateway.approvals.events import BATCH_MEMBER, COLLECTION, Event, EventName
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, Item, approval_of, is_collected
from keyturn.gateway.approvals.signed_decisions import DecisionKey
from keyturn.gateway.protocol.records import ItemState, Tier

Partition = Mapping[int, Decision | None]
"""Position of each waiting call on a card to its decision; None: it keeps waiting."""

MAX_ITEMS = 6
"""Calls on one card with rows and buttons of their own, within Slack's limits."""
LONGEST_ROW = 150
"""Longest arguments of one call that a table may show in full, in characters."""

NOTHING_CHOSEN = Invalid(errors={"": "Nothing is chosen, so nothing was recorded."})

_BEHALF = "on_behalf_of"


class Choice(NamedTuple):
    """One call as the reviewer saw it, and their decision; None: it keeps waiting."""

    click: Click
    decision: Decision | None


@dataclass(frozen=True)
class Gesture:
    """Decisions of one person at one moment.

    Attributes:
        choices: by the position of the call on the card.
        card: the whole card as the reviewer saw it, by its id and its digest; without
            an id, a list of calls from several cards. None for a click on one call.
    """

    choices: Mapping[int, Choice]
    card: Click | None = None

    @classmethod
    def on_call(cls, click: Click, decision: Decision) -> Gesture:
        """Return a decision on one call."""
        return cls({click.index: Choice(click, decision)})

    @classmethod
    def on_card(
        cls,
        shown: Approval,
        click: Click,
        partition: Partition,
        versions: Mapping[str, int] | None = None,
    ) -> Gesture:
        """Return decisions on calls of one card.

        Args:
            shown: the record of the card, as the person saw it.
            click: on the card; its hash is the digest that was shown.
            partition: a decision for each waiting call.
            versions: of the approvals that a collected card shows. The seal of the card
                contains the hash of each call, and an edited call has left the card.
        """
        items = {item.index: item for item in shown.items}

        def seen(place: int) -> Click:
            item = items.get(place)
            action_hash = item.action_hash if item else ""
            one = click.with_(index=place, action_hash=action_hash, is_shared=True)
            if item is None or not is_collected(shown):
                return one
            approval_id, index = approval_of(item.id)
            version = (versions or {}).get(approval_id, 0)
            return one.with_(approval=approval_id, index=index, version=version)

        return cls({n: Choice(seen(n), partition[n]) for n in sorted(partition)}, click)

    @property
    def decided(self) -> dict[int, tuple[Click, Decision]]:
        """Return the decisions, without the calls that keep waiting."""
        return {
            place: (click, decision)
            for place, (click, decision) in self.choices.items()
            if decision is not None
        }


@dataclass(frozen=True)
class GestureChange:
    """The next versions of approvals, and the outcome for the reviewer.

    Attributes:
        changes: by approval.
        outcome: for the reviewer.
        events: about calls of several approvals.
    """

    changes: Mapping[str, Change]
    outcome: GestureDecided | Outcome
    events: Sequence[Event] = ()


def decide_gesture(
    records: Mapping[str, Approval],
    gesture: Gesture,
    reviewer: Reviewer,
    *,
    now_ms: int,
    calls: Mapping[int, CallNow],
    key: DecisionKey | None = None,
) -> GestureChange | GestureRefused | Refusal:
    """Apply a gesture to its approvals, or return why it does not count.

    Args:
        records: the current approvals, by id; a missing one is unknown.
        gesture: the reviewer's view and decisions.
        reviewer: resolved now.
        now_ms: the store's clock.
        calls: facts about the calls, by position.
        key: the bot's key, which signs the decisions.
    """
    if not records:
        return Unknown() if gesture.decided else NOTHING_CHOSEN
    card = gesture.card
    batch = records.get(card.approval) if card else None
    moved = _moved(batch, card, gesture.choices, now_ms) if batch and card else None
    if moved:
        return moved
    done = _Done(dict(records))
    for place, (click, decision) in gesture.decided.items():
        approval = records.get(click.approval)
        if approval is None:
            done.refusals[place] = Unknown()
            continue
        # First check: a call that changed stops the whole gesture and is never skipped.
        refusal = no_such_item(approval, click)
        if card:
            refusal = not_as_seen(approval, click, now_ms)
        if refusal:
            done.refusals[place] = refusal
            continue
        now = calls[place]
        item = approval.items[click.index]
        is_alone = now.repeats or is_escalated(item, now.policy_now)
        if card and isinstance(decision, Approve) and is_alone:
            done.left_out.add(place)
            continue
        result = decide(
            done.after[approval.id],
            click,
            decision,
            reviewer,
            now_ms=now_ms,
            now=now,
            key=key,
        )
        done.note(place, approval, result)
    return done.refusal(card) or done.change(records, gesture)


@dataclass(frozen=True)
class _Done:
    """Results of a gesture's calls, by position; and the approvals, by id."""

    after: dict[str, Approval]
    changes: dict[int, Change] = field(default_factory=dict[int, Change])
    refusals: dict[int, Refusal] = field(default_factory=dict[int, Refusal])
    left_out: set[int] = field(default_factory=set[int])
    already: set[int] = field(default_factory=set[int])

    def note(self, place: int, approval: Approval, result: Change | Refusal) -> None:
        """Note the result of one decision."""
        if isinstance(result, Change):
            self.changes[place] = result
            # Evaluate each call together with the calls decided before it. Until the
            # end, keep the version that the reviewer saw.
            self.after[approval.id] = result.approval.with_(version=approval.version)
            # The call keeps waiting. Its next card shows the repeated call.
            if isinstance(result.waits_on, Repeated):
                self.left_out.add(place)
        elif result == ALREADY_APPROVED:
            self.already.add(place)
        else:
            self.refusals[place] = result

    def refusal(self, card: Click | None) -> GestureRefused | Refusal | None:
        """Return why nothing is recorded; None if something is."""
        if self.refusals and card:
            return GestureRefused(refusals=self.refusals)
        if self.refusals or self.changes:
            return next(iter(self.refusals.values()), None)
        if self.already:
            return ALREADY_APPROVED
        return NEEDS_OWN_DECISION if self.left_out else NOTHING_CHOSEN

    def change(
        self, records: Mapping[str, Approval], gesture: Gesture
    ) -> GestureChange:
        """Return the next version of each approval."""
        if (card := gesture.card) is None:
            [(place, change)] = self.changes.items()
            return GestureChange({change.approval.id: change}, change.outcome(place))
        of_each: dict[str, list[Change]] = {}
        for place, change in self.changes.items():
            of_each.setdefault(gesture.choices[place].click.approval, []).append(change)
        written = {
            one: _merged(records[one], self.after[one], parts, card.action_hash)
            for one, parts in of_each.items()
        }
        outcome = _outcome(gesture, written, self.changes.keys() - self.left_out)
        outcome = outcome.with_(
            left_out=tuple(sorted(self.left_out)), already=tuple(sorted(self.already))
        )
        whole = _whole(card, written, outcome)
        if (batch := written.get(card.approval)) is None:
            return GestureChange(written, outcome, [whole])
        own = replace(batch, events=(whole, *batch.events))
        return GestureChange({card.approval: own}, outcome)


def _merged(
    before: Approval, after: Approval, parts: Sequence[Change], digest: str
) -> Change:
    """Merge changes of calls of one approval into one change."""
    # The old card shows neither an edit nor the call that a call repeats.
    repeats = any(isinstance(one.waits_on, Repeated) for one in parts)
    is_changed = after.digest != before.digest or repeats
    after = after.with_(rev=before.rev + 1, version=before.version + int(is_changed))
    events = (event for one in parts for event in one.events)
    return Change(
        after,
        tuple(
            event.with_(version=after.version, data=event.data | {BATCH_MEMBER: digest})
            for event in events
        ),
        before_ms=min(one.before_ms for one in parts),
        resumes=any(one.resumes for one in parts),
    )


def _moved(
    batch: Approval, card: Click, choices: Mapping[int, Choice], now_ms: int
) -> GestureRefused | Refusal | None:
    """Return why a batch has changed since the reviewer decided."""
    items = batch.items
    waiting = {item.index for item in items if item.is_pending}
    if not waiting:
        return Stale(item=items[-1])
    if timing.is_over(batch, now_ms):
        return Expired(expires_at_ms=batch.expires_at_ms)
    # A call past its end does not wait any more: the sweep will end it and update the
    # card.
    late: dict[int, Refusal] = {
        item.index: Expired(expires_at_ms=timing.end_of(batch, item))
        for item in items
        if timing.is_late(batch, item, now_ms)
    }
    if late:
        return GestureRefused(refusals=late)
    # The digest covers order, ids and hashes, but no states. The exact partition
    # detects a call that another person has decided since.
    ended = [item for item in items if item.index in choices.keys() - waiting]
    if ended:
        return Stale(item=ended[0])
    seen = (card.version, card.action_hash)
    if seen != (batch.version, batch.digest) or {*choices} != waiting:
        return Changed(seen_version=card.version, version=batch.version)
    return None


def is_escalated(item: Item, policy_now: PolicyDecision) -> bool:
    """Return True if the current policy requires a separate decision on a call."""
    raised = raised_item(first_of(item, policy_now), policy_now)
    return raised.tier in {Tier.ESCALATE, Tier.DENY}


def _outcome(
    gesture: Gesture, written: Mapping[str, Change], counted: Collection[int]
) -> GestureDecided:
    decided = {place: gesture.decided[place] for place in sorted(counted)}
    items = {
        place: written[click.approval].approval.items[click.index]
        for place, (click, _) in decided.items()
    }

    def of(kind: type[Decision], *states: ItemState) -> tuple[int, ...]:
        return tuple(
            place
            for place, (_, decision) in decided.items()
            if isinstance(decision, kind)
            and (not states or items[place].state in states)
        )

    return GestureDecided(
        approvals={one: change.approval for one, change in written.items()},
        approved=of(Approve),
        edited=of(Edit),
        rejected=of(Reject, ItemState.REJECTED),
        # A rejection by a principal of the call withdraws it.
        withdrawn=of(Reject, ItemState.WITHDRAWN),
        waiting=tuple(place for place, item in items.items() if item.is_pending),
    )


def _whole(
    card: Click, written: Mapping[str, Change], outcome: GestureDecided
) -> Event:
    """Return the entry about the whole gesture: the digest and the partition."""
    of_calls = [event for change in written.values() for event in change.events]
    first, batch = of_calls[0], written.get(card.approval)
    parts = {
        "approved": outcome.approved,
        "edited": outcome.edited,
        "rejected": outcome.rejected,
        "withdrawn": outcome.withdrawn,
        "waiting": outcome.waiting,
        "left_out": outcome.left_out,
    }
    # The delegators used for a decision depend on the roles of each call.
    behalf = _each(
        person for one in of_calls for person in one.data.get(_BEHALF, "").split()
    )
    is_own = batch is not None
    # A shared card shows calls of several approvals, so the entry names none.
    elsewhere = {"approval": "", "thread": "", "nested_in": None, "channel": ""}
    return first.with_(
        name=EventName.APPROVAL_DECIDED if is_own else EventName.CALLS_DECIDED,
        item="",
        tier="",
        agent=_shared(one.agent for one in of_calls),
        tool=_shared(one.tool for one in of_calls),
        # The digest that the reviewer saw.
        action_hash=card.action_hash,
        policy_digest=_shared(one.policy_digest for one in of_calls),
        roles=_each(role for one in of_calls for role in one.roles),
        reason=" · ".join(_each(one.reason for one in of_calls)),
        data={
            "gesture": first.data["gesture"],
            **({_BEHALF: " ".join(behalf)} if behalf else {}),
            **({COLLECTION: card.approval} if card.approval and not is_own else {}),
            # The digest after edits; an edited call leaves a collected card.
            "digest": batch.approval.digest if batch else card.action_hash,
            **{name: index_ranges(part) for name, part in parts.items() if part},
        },
        **({} if is_own else {**elsewhere, "version": 0}),
    )


def _each(words: Iterable[str]) -> tuple[str, ...]:
    """Return each word once, in order, without empty ones."""
    return tuple(dict.fromkeys(filter(None, words)))


def _shared(words: Iterable[str]) -> str:
    """Return the common word; "" if they differ."""
    found = {*words}
    return found.pop() if len(found) == 1 else ""


def index_ranges(indexes: Iterable[int]) -> str:
    """Return sorted indexes as text: "0-53,55" for 0 to 53 and 55."""
    rows: list[list[int]] = []
    for index in sorted(indexes):
        if rows and index == rows[-1][1] + 1:
            rows[-1][1] = index
        else:
            rows.append([index, index])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in rows)


def indexes_in(ranges: str) -> list[int]:
    """Return the indexes in a text of `index_ranges`."""
    rows = [part.partition("-") for part in ranges.split(",") if part]
    return [
        index
        for first, _, last in rows
        for index in range(int(first), int(last or first) + 1)
    ]
