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
    """The next version of an approval, and what belongs to it in the same step.

    Attributes:
        approval: the next record, one revision on.
        events: what to announce.
        voted: set while more people are needed.
        repeated: set while people have to see first what the item repeats.
        too_soon: set when the approval came too soon, and is asked for once more.
        before_ms: written only before this moment of the store's clock; 0: at any.
        resumes: the agent is brought back.
        fires: kind of the timer that this change is about; it has to be due.
        timers: kinds to set beside those that follow from the record, and when, in Unix
            milliseconds.
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
        """Return what came of a decision on an item, once this is written."""
        return self.waits_on or Decided(approval=self.approval, index=index)


def following(approval: Approval, *items: Item, **changes: object) -> Approval:
    """Return the next record: with these items, and one revision on."""
    after = approval.replacing(*items, rev=approval.rev + 1, **changes)
    return with_next_end(after)


def by_gateway(
    approval: Approval, item: Item, policy_digest: str = "", **changes: object
) -> Change:
    """Return a change that no person made: an authorization or a wait was ended.

    ``policy_digest`` is of the policy that asked for it; "": that of the record.
    """
    after = following(approval, item, **changes)
    name = EventName.ITEM_REOPENED if item.is_pending else named_after(item.state)
    reason = item.revoked.reason if item.revoked else ""
    event = approval_event(after, name, item, reason=reason).with_(actor=BY_GATEWAY)
    if policy_digest:
        event = event.with_(policy_digest=policy_digest)
    return Change(after, (event,))
