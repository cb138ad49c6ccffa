"""Hold what every part of one card needs, and share out its room.

Slack refuses a message whose blocks hold too much text, by a rule it does not publish;
`bot.blockkit.limits.TEXT_IN_ALL_BLOCKS` is our budget. It is shared out in advance and
by the number of calls alone, so that whether a call is shown whole never depends on
what happened to its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

from bot.blockkit.limits import TEXT_IN_ALL_BLOCKS
from bot.ids import block_id, seal
from gateway.approvals.record import Approval, Item

MAX_ROWS = 6
"""How many calls of a batch have rows of their own on the card."""

_HEAD_AND_TAIL = 1_700
_ROW_WORDS = 560  # sentence, why, warnings, buttons and their questions


@dataclass(frozen=True, slots=True)
class Room:
    """How many characters each part of one call's row may take."""

    title: int
    call: int
    change: int
    text: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One card that is being made.

    Attributes:
        approval: the record it shows.
        key: the bot's sealing key.
        team: the workspace it is posted in.
        now_ms: the time, in Unix milliseconds.
    """

    approval: Approval
    key: bytes
    team: str
    now_ms: int

    @property
    def is_late(self) -> bool:
        """Say whether the time to decide is over."""
        return self.now_ms >= self.approval.expires_at_ms

    @property
    def room(self) -> Room:
        """Return the room of one row."""
        return room(self.approval)

    def value(self, index: int | None, purpose: str) -> str:
        """Return the sealed value of a button."""
        return seal(self.approval, index, key=self.key, team=self.team, purpose=purpose)

    def block_id(self, name: str) -> str:
        """Return the id of a block on this card."""
        return block_id(self.approval, name)


def room(approval: Approval) -> Room:
    """Return the room of one row on the card of this approval."""
    rows = min(len(approval.items), MAX_ROWS)
    free = (TEXT_IN_ALL_BLOCKS - _HEAD_AND_TAIL) // rows - _ROW_WORDS
    return Room(
        title=free * 6 // 100,
        call=free * 50 // 100,
        change=free * 22 // 100,
        text=free * 11 // 100,
    )


def rows_of(approval: Approval) -> tuple[Item, ...]:
    """Return the items that have rows: those that wait for a person come first."""
    waiting = [item for item in approval.items if item.is_pending]
    others = [item for item in approval.items if not item.is_pending]
    chosen = [*waiting, *others][:MAX_ROWS]
    return tuple(sorted(chosen, key=lambda item: item.index))
