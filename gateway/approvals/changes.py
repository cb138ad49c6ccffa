"""Change of an approval (next record, events, timers), and its builders."""

from __future__ import annotations

from dataclasses import dataclass

from keyturn.gateway.approvals.decisions import (
    Decided,
    Outcome,
    Repeated,
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
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.timing import with_next_end


@dataclass(frozen=True)
class Change:
    """The next version of an approval, and the effects to write in the same step.

    Attributes:
        approval: the next record, one revision on.
        events: to announce.
        voted: set while more people are needed.
        repeated: set while people first have to see a call that the item repeats.
        too_soon: set if the approval came too soon and has to be repeated.
        before_ms: latest moment for the write, exclusive, by the store's clock; 0:
            none.
        resumes: the agent is resumed.
        fires: kind of the timer that caused this change; it has to be due.
        timers: further timers to set, next to those derived from the record: kind, and
            time in Unix milliseconds.
    """

    approval: Approval
    events: tuple[Event, ...] = ()
    voted: Voted | None = None
    repeated: Repeated | None = None
    too_soon: TooSoon | None = None
    before_ms: int = 0
    resumes: bool = False
    fires: str = ""
    timers: tuple[tuple[str, int], ...] = ()

    @property
    def waits_on(self) -> Voted | Repeated | TooSoon | None:
        """Return why the call waits on after this decision; None: it does not."""
        return self.voted or self.repeated or self.too_soon

    def outcome(self, index: int) -> Outcome:
        """Return the outcome of a decision on an item, once this change is written."""
        return self.waits_on or Decided(approval=self.approval, index=index)


def following(approval: Approval, *items: Item, **changes: object) -> Approval:
    """Return the next record, with these items and the next revision."""
    after = approval.replacing(*items, rev=approval.rev + 1, **changes)
    return with_next_end(after)


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
