"""What somebody chose of the calls of a batch so far, and of which calls as shown."""

from __future__ import annotations

from pydantic import Field

from twokey.bot.cards.batch_footer import decided_alone
from twokey.gateway.approvals.decisions import Approve, Decision, Edit, Reject
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.strict_json import JsonObject


class StagedEdit(Record):
    """An edit that is kept until its batch is decided."""

    args: JsonObject
    reason: str = ""


class Choice(Record):
    """What a person chose so far; calls are named by their index.

    An edit counts where its call is ticked. What is in none of the three stays waiting.
    ``seen`` are the calls that waited when the form was opened, each with what its card
    said (`_as_shown`): only these, as they were, can be chosen.
    """

    seen: dict[int, str] = Field(default_factory=dict[int, str])

    approve: tuple[int, ...] = ()
    reject: tuple[int, ...] = ()
    edits: dict[int, StagedEdit] = Field(default_factory=dict[int, StagedEdit])

    @property
    def size(self) -> int:
        """Return how many calls are decided."""
        return len(self.approve) + len(self.reject) + len(self.edits)

    def is_of(self, approval: Approval) -> bool:
        """Return whether the same calls wait as when it was opened, unchanged."""
        waiting = {item.index for item in approval.items if item.is_pending}
        return waiting == self.seen.keys() and not self.moved(approval)

    def moved(self, approval: Approval) -> tuple[Item, ...]:
        """Return the calls that are not any more as they were when it was opened."""
        return tuple(
            item
            for item in approval.items
            if item.index in self.seen and not self._is_as_seen(item)
        )

    def without_moved(self, approval: Approval) -> Choice:
        """Return what of the choice is about calls that are as they were seen."""
        kept = {item.index for item in approval.items if self._is_as_seen(item)}
        return self.with_(
            approve=tuple(index for index in self.approve if index in kept),
            reject=tuple(index for index in self.reject if index in kept),
            edits={i: edit for i, edit in self.edits.items() if i in kept},
        )

    def offered(self, approval: Approval) -> list[Item]:
        """Return the calls that have a box."""
        return [item for item in offered(approval) if self._is_as_seen(item)]

    def _is_as_seen(self, item: Item) -> bool:
        return item.is_pending and self.seen.get(item.index) == _as_shown(item)

    def partition(self, approval: Approval, reason: str) -> dict[int, Decision | None]:
        """Return what is decided of each waiting call."""
        partition = dict[int, Decision | None].fromkeys(
            item.index for item in approval.items if item.is_pending
        )
        partition |= dict.fromkeys(self.approve, Approve())
        partition |= dict.fromkeys(self.reject, Reject(reason=reason))
        for index, edit in self.edits.items():
            partition[index] = Edit(args=edit.args, reason=edit.reason)
        return partition


def opened(approval: Approval) -> Choice:
    """Return a choice of what can be chosen now, in which nothing is chosen yet."""
    waiting = [item for item in approval.items if item.is_pending]
    return Choice(seen={item.index: _as_shown(item) for item in waiting})


def _as_shown(item: Item) -> str:
    """Return what is another text once a call has to be looked at again."""
    # What would run; since when it waits; whether what it repeats was shown; whether it
    # was restored. A vote is none of these.
    looks = (item.changed_at_ms, item.repeats_seen_ms, int(item.is_restored))
    return " ".join((item.action_hash, *map(str, looks)))


def offered(approval: Approval) -> list[Item]:
    """Return the waiting calls that can be decided together."""
    alone = decided_alone(approval)
    return [
        item for item in approval.items if item.is_pending and item.index not in alone
    ]
