"""Apply one decision to every waiting call of a batch, as a pure function.

The partition says what is decided of each waiting call. It is applied as a whole or not
at all: if one call moved since the reviewer saw the card, or may not be decided like
this, nothing is recorded. Only what the policy escalated since then is left out, as it
needs a decision of its own, and what repeats a call that was approved since then; the
outcome names it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from twokey.gateway.approvals import quorum, timing
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.deciding import (
    ALREADY_APPROVED,
    NEEDS_OWN_DECISION,
    decide,
)
from twokey.gateway.approvals.decisions import (
    Approve,
    BatchDecided,
    BatchRefused,
    Changed,
    Click,
    Decision,
    Edit,
    Expired,
    Forbidden,
    Invalid,
    Refusal,
    Reject,
    Reviewer,
    Stale,
)
from twokey.gateway.approvals.events import BATCH_MEMBER, NEEDS_ONE, Event, EventName
from twokey.gateway.approvals.policy_decision import PolicyDecision
from twokey.gateway.approvals.raising import first_of, raised_item
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.signed_decisions import DecisionKey
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.tiers import Tier

Partition = Mapping[int, Decision | None]
"""Index of each waiting call to what is decided of it; None leaves it waiting."""

ONE_EDIT = Forbidden(
    reason="The policy adds up what such calls come to, so one decision can edit only "
    "one of them. Nothing was recorded. Decide the others on their own."
)
NOTHING_CHOSEN = Invalid(errors={"": "Nothing is chosen, so nothing was recorded."})

_OF_ALL = ("gesture", "on_behalf_of")
"""What an event of each call says of the person, and so of the whole gesture."""


@dataclass(frozen=True)
class BatchChange:
    """The next version of an approval, and what to tell the person who decided."""

    change: Change
    outcome: BatchDecided


def decide_batch(  # noqa: PLR0913 - what a decision is made over, by name
    approval: Approval,
    click: Click,
    partition: Partition,
    reviewer: Reviewer,
    *,
    now_ms: int,
    policies: Mapping[int, PolicyDecision],
    voters: Mapping[int, Sequence[Reviewer]],
    repeats: Collection[int] = (),
    key: DecisionKey | None = None,
) -> BatchChange | BatchRefused | Refusal:
    """Apply a partition to an approval, or say why none of it counts.

    Args:
        approval: the record as it stands.
        click: what the reviewer saw; its ``action_hash`` is the batch digest.
        partition: a decision for exactly the calls that wait.
        reviewer: who they are, resolved now.
        now_ms: the store's clock.
        policies: by index, what the current policy says of what would run.
        voters: by index, those who voted before, resolved now.
        repeats: calls that need more once others of the partition are approved.
        key: signs what they say, for the bot.
    """
    refusal = _moved(approval, click, partition, now_ms)
    if refusal is not None:
        return refusal
    left_out = {
        index
        for index, decision in partition.items()
        if isinstance(decision, Approve)
        and (
            index in repeats or is_escalated(approval.items[index], policies.get(index))
        )
    }
    decided = {
        index: decision
        for index, decision in sorted(partition.items())
        if decision is not None and index not in left_out
    }
    if not decided:
        return NEEDS_OWN_DECISION if left_out else NOTHING_CHOSEN
    after = approval
    changes: dict[int, Change] = {}
    for index, decision in decided.items():
        seen = click.with_(
            index=index,
            action_hash=approval.items[index].action_hash,
            is_shared=True,
        )
        result = decide(
            after,
            seen,
            decision,
            reviewer,
            now_ms=now_ms,
            policy_now=policies.get(index),
            voters=voters.get(index, ()),
            key=key,
        )
        # Who approved one of several calls before approves the others now.
        if result == ALREADY_APPROVED:
            continue
        if not isinstance(result, Change):
            return BatchRefused(index=index, refusal=result)
        changes[index] = result
        if result.repeated is not None:
            left_out.add(index)
        # Each call is evaluated beside those that were decided before it. The version
        # stands still meanwhile: it is the one that the reviewer saw.
        after = result.approval.with_(version=approval.version)
    if not changes:
        return ALREADY_APPROVED
    counted = [index for index in changes if index not in left_out]
    # On the card of before, an edit is not seen, and neither is what a call repeats.
    is_changed = after.digest != approval.digest or len(counted) < len(changes)
    after = after.with_(
        rev=approval.rev + 1, version=approval.version + (1 if is_changed else 0)
    )
    outcome = _outcome(after, decided, counted, left_out)
    change = Change(
        after,
        _events(approval, outcome, changes),
        before_ms=approval.expires_at_ms,
        resumes=any(one.resumes for one in changes.values()),
    )
    return BatchChange(change, outcome)


def _moved(
    approval: Approval, click: Click, partition: Partition, now_ms: int
) -> BatchRefused | Refusal | None:
    """Return why the batch is not the one that the reviewer decided."""
    items = approval.items
    waiting = {item.index for item in items if item.is_pending}
    if not waiting:
        return Stale.of(items[-1])
    if timing.is_over(approval, now_ms):
        return Expired(expires_at_ms=approval.expires_at_ms)
    # A call whose time is over is no part of what waits, as the card will say once the
    # sweep has ended it.
    late = [item for item in items if timing.is_late(approval, item, now_ms)]
    if late:
        over = Expired(expires_at_ms=timing.end_of(approval, late[0]))
        return BatchRefused(index=late[0].index, refusal=over)
    # The digest covers order, ids and hashes. States are not in it: a call that
    # somebody decided meanwhile is found by the partition, which has to be exact.
    ended = [item for item in items if item.index in partition.keys() - waiting]
    if ended:
        return Stale.of(ended[0])
    seen = (click.version, click.action_hash)
    if seen != (approval.version, approval.digest) or {*partition} != waiting:
        return Changed(seen_version=click.version, version=approval.version)
    return None


def is_escalated(item: Item, policy_now: PolicyDecision | None) -> bool:
    """Return whether a call needs a decision of its own by the policy of now."""
    raised = raised_item(first_of(item, policy_now), policy_now)
    return raised.tier in {Tier.ESCALATE, Tier.DENY}


def _outcome(
    after: Approval,
    decided: Partition,
    counted: Sequence[int],
    left_out: Collection[int],
) -> BatchDecided:
    def of(kind: type[Decision]) -> tuple[int, ...]:
        return tuple(index for index in counted if isinstance(decided[index], kind))

    items = after.items
    # Said by somebody who asked for the call, a rejection takes it back.
    withdrawn = [i for i in of(Reject) if items[i].state is ItemState.WITHDRAWN]
    waiting = tuple(index for index in counted if items[index].is_pending)
    return BatchDecided(
        approval=after,
        approved=of(Approve),
        edited=of(Edit),
        rejected=tuple(index for index in of(Reject) if index not in withdrawn),
        withdrawn=tuple(withdrawn),
        waiting=waiting,
        needs_one=bool(waiting) and all(needs_one_more(items[i]) for i in waiting),
        left_out=tuple(sorted(left_out)),
    )


def needs_one_more(item: Item) -> bool:
    """Return whether one more person is enough for a call."""
    count = quorum.tally(item.requirement, item.votes, item.action_hash)
    return max(count.need - count.have, sum(count.lacking.values())) == 1


def _events(
    before: Approval, outcome: BatchDecided, changes: Mapping[int, Change]
) -> tuple[Event, ...]:
    """Return the entry about the whole gesture, then what it did to each call."""
    # Once: it is made of the hashes of all calls.
    after, digest = outcome.approval, before.digest
    of_calls = [
        event.with_(version=after.version, data=event.data | {BATCH_MEMBER: digest})
        for change in changes.values()
        for event in change.events
    ]
    parts = {
        "approved": outcome.approved,
        "edited": outcome.edited,
        "rejected": outcome.rejected,
        "withdrawn": outcome.withdrawn,
        "waiting": outcome.waiting,
        "left_out": outcome.left_out,
    }
    # Of these calls only: others of the batch may have been decided before, by others.
    decisions = (after.items[index].decision for index in changes)
    reasons = (decision.text for decision in decisions if decision)
    tools = {event.tool for event in of_calls}
    # Who, in whose place and by which gesture is the same for all of them.
    first = of_calls[0]
    whole = first.with_(
        name=EventName.APPROVAL_DECIDED,
        item="",
        tool=tools.pop() if len(tools) == 1 else "",
        tier="",
        # What the reviewer saw; `digest` is what it is after their edits.
        action_hash=digest,
        roles=tuple(dict.fromkeys(role for event in of_calls for role in event.roles)),
        reason=" · ".join(dict.fromkeys(filter(None, reasons))),
        data={
            **{key: first.data[key] for key in _OF_ALL if key in first.data},
            "digest": after.digest,
            **{name: index_ranges(part) for name, part in parts.items() if part},
            **({NEEDS_ONE: "yes"} if outcome.needs_one else {}),
        },
    )
    return (whole, *of_calls)


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
    """Return the indexes that a text of `index_ranges` names."""
    rows = [part.partition("-") for part in ranges.split(",") if part]
    return [
        index
        for first, _, last in rows
        for index in range(int(first), int(last or first) + 1)
    ]


def count_ranges(ranges: str) -> int:
    """Return how many indexes a text of `index_ranges` names."""
    return len(indexes_in(ranges))
