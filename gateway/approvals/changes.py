"""Change of an approval (next record, events, timers), and its builders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.decisions import (
    Decided,
    Outcome,
    Repeated,
    Reviewer,
    TooSoon,
    Voted,
)
from keyturn.gateway.approvals.events import (
    BY_GATEWAY,
    Event,
    EventName,
    approval_event,
    named_after,
)
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Revocation, Role
from keyturn.gateway.approvals.timing import with_next_end
from keyturn.gateway.protocol.records import Person


@dataclass(frozen=True)
class Change:
    """The next version of an approval, and the effects to write in the same step.

    Attributes:
        approval: the next record, one revision on.
        events: to announce.
        waits_on: why the call keeps waiting after this decision: more people are
            needed, people first have to see a call that the item repeats, or the
            approval came too soon. None: it does not.
        before_ms: latest moment for the write, exclusive, by the store's clock; 0:
            none.
        resumes: the agent is resumed.
        fires: kind of the timer that caused this change; it has to be due.
        timers: further timers to set, next to those derived from the record: kind, and
            time in Unix milliseconds.
    """

    approval: Approval
    events: tuple[Event, ...] = ()
    waits_on: Voted | Repeated | TooSoon | None = None
    before_ms: int = 0
    resumes: bool = False
    fires: str = ""
    timers: tuple[tuple[str, int], ...] = ()

    def outcome(self, index: int) -> Outcome:
        """Return the outcome of a decision on an item, once this change is written."""
        return self.waits_on or Decided(approval=self.approval, index=index)


def following(approval: Approval, *items: Item, **changes: object) -> Approval:
    """Return the next record, with these items and the next revision."""
    after = approval.replacing(*items, rev=approval.rev + 1, **changes)
    return with_next_end(after)


def reached(approval: Approval, *items: Item) -> Change:
    """Return a change to items that have reached these states."""
    events = (approval_event(approval, named_after(one.state), one) for one in items)
    return Change(following(approval, *items), tuple(events))


def by_gateway(
    approval: Approval, item: Item, policy_digest: str = "", **changes: object
) -> Change:
    """Return a change by the gateway: it ends an authorization or a wait.

    ``policy_digest`` is of the policy that required it; "": that of the record.
    """
    after = following(approval, item, **changes)
    name = EventName.ITEM_REOPENED if item.is_pending else named_after(item.state)
    reason = item.revoked.reason if item.revoked else ""
    event = approval_event(after, name, item, reason=reason).with_(actor=BY_GATEWAY)
    if policy_digest:
        event = event.with_(policy_digest=policy_digest)
    return Change(after, (event,))


def ended(
    approval: Approval,
    item: Item,
    transition: Transition,
    reason: str,
    now_ms: int,
    *,
    policy_digest: str = "",
    by: Person | None = None,
) -> Change:
    """Return a change that ends a call for good, for a reason of Keyturn."""
    why = reason_of_end(item, reason, now_ms).with_(is_final=True, by=by)
    after = item.moved(transition, now_ms, revoked=why)
    return by_gateway(approval, after, policy_digest)


def reason_of_end(item: Item, reason: str, now_ms: int) -> Revocation:
    """Return the reason for the gateway's change to a call."""
    # Not counted as one more: the call does not go back to people.
    times = item.revoked.times if item.revoked else 0
    return Revocation(
        reason=reason, at_ms=now_ms, times=times, is_restored=item.is_restored
    )


def by_person(event: Event, person: Reviewer, roles: Iterable[Role] = ()) -> Event:
    """Return an event of a person, with their gesture and their roles among these."""
    held = quorum.roles_of(person, roles)
    return event.with_(
        actor=f"{person.team}/{person.user}",
        roles=tuple(dict.fromkeys(held)),
        data={**event.data, "gesture": person.gesture.value},
    )
