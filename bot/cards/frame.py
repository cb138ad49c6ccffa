"""Rendering context of one card: record, keys, time and size budget.

Slack refuses a message whose blocks hold too much text, by a rule it does not publish;
`twokey.bot.blocks.TEXT_BUDGET` stays below it. It is divided by the number of calls
alone, so whether a call is shown whole never depends on the state of the other calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from twokey.bot.blocks import TEXT_BUDGET, button
from twokey.bot.ids import Action, block_id, seal
from twokey.bot.inputs import select
from twokey.bot.objects import Block, option
from twokey.bot.text_types import Plain, label
from twokey.gateway.approvals.collected import is_collected
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.timing import is_late, is_over
from twokey.gateway.protocol.states import ItemState

MAX_ROWS = 5
"""How many calls of a batch have rows of their own on the card."""

TABLE_FROM = 7
"""From how many calls of one tool on they stand in a table instead of rows."""

# What surrounds the rows, and in a row the sentence, the reasons, the warnings and
# the buttons with their questions; measured at their longest by a test.
_HEAD_AND_TAIL = 1_840
_HEAD_AND_TAIL_OF_BATCH = 2_345
_ROW_TEXT = 1_005
_ROW_TEXT_IN_BATCH = 580
_HEAD_AND_TAIL_AUTO_APPROVED = 2_930
_INQUIRIES = 100
"""What the line about questions to the requester takes on the card of a batch."""
_TOTALS = 500
"""What totals take on the card of a few calls: lines, and the question of a button."""
_OTHERS = 300
"""What the list of calls without rows takes."""


MIN_EXCERPT = 80
"""The least that an excerpt takes, with its gap named."""


@dataclass(frozen=True, slots=True)
class TextBudget:
    """How many characters each part of one call's row may take.

    Attributes:
        title: the policy's description.
        call: the tool and its arguments.
        change: what an edit changed.
        text: each of the words of people and tools; a row has two of them at most.
        note: each of the small notes: reasons, warnings, what a button asks.
    """

    title: int
    call: int
    change: int
    text: int
    note: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One card that is being made.

    Attributes:
        approval: the record it shows.
        key: the bot's sealing key.
        team: the workspace it is posted in.
        now_ms: the time, in Unix milliseconds.
        sent: people whose direct messages show the same card.
        card_in: on a direct message, the channel of the card it is a copy of.
        conversation: address of the Slack message with which the agent was asked; ""
            where there is none to show.
    """

    approval: Approval
    key: bytes
    team: str
    now_ms: int
    sent: tuple[str, ...] = ()
    card_in: str = ""
    conversation: str = ""

    @property
    def is_late(self) -> bool:
        """Return whether the time to decide is over, of all that waits."""
        return is_over(self.approval, self.now_ms)

    def can_decide(self, item: Item) -> bool:
        """Return whether a call waits and its time is not over."""
        return item.is_pending and not is_late(self.approval, item, self.now_ms)

    @property
    def budget(self) -> TextBudget:
        """Return the text budget of one row."""
        return text_budget(self.approval)

    def value(self, index: int | None, purpose: str, *, page: int = 0) -> str:
        """Return the sealed value of a button."""
        return seal(
            self.approval,
            index,
            key=self.key,
            team=self.team,
            purpose=purpose,
            page=page,
        )

    def button(
        self,
        index: int | None,
        action: Action,
        text: Plain,
        *,
        accessibility_label: Plain,
        style: Literal["primary", "danger"] | None = None,
        confirm: Block | None = None,
    ) -> Block:
        """Return a button about one call, or the whole card, sealed for its action."""
        return button(
            action,
            text,
            value=self.value(index, action),
            style=style,
            accessibility_label=accessibility_label,
            confirm=confirm,
        )

    def menu(
        self, items: Iterable[Item], action: Action, *, prefix: str, placeholder: Plain
    ) -> Block:
        """Return a menu of calls; each is named by ``prefix`` and its number."""
        options = [
            option(label(f"{prefix}{item.index + 1}"), self.value(item.index, action))
            for item in items
        ]
        return select(action, options, placeholder=placeholder)

    def block_id(self, name: str) -> str:
        """Return the id of a block on this card."""
        return block_id(self.approval, name)


def is_table(approval: Approval) -> bool:
    """Return whether the calls of an approval stand in a table."""
    if is_collected(approval):
        return True
    is_of_one_tool = len({item.tool for item in approval.items}) == 1
    is_many = len(approval.items) >= TABLE_FROM
    return is_many and is_of_one_tool and not approval.is_auto_approved


def text_budget(approval: Approval) -> TextBudget:
    """Return the text budget of one row on the card of this approval."""
    rows = min(len(approval.items), MAX_ROWS)
    is_batch = approval.is_batch
    fixed = _HEAD_AND_TAIL_OF_BATCH if is_batch else _HEAD_AND_TAIL
    if approval.is_auto_approved:
        fixed = _HEAD_AND_TAIL_AUTO_APPROVED
    free = TEXT_BUDGET - fixed
    free -= _OTHERS if len(approval.items) > MAX_ROWS else 0
    free -= _TOTALS if is_batch and any(one.totals for one in approval.items) else 0
    free -= _INQUIRIES if approval.inquiries and is_batch else 0
    free = free // rows - (_ROW_TEXT_IN_BATCH if is_batch else _ROW_TEXT)
    return TextBudget(
        title=max(MIN_EXCERPT, free * 6 // 100),
        call=free * 45 // 100,
        change=max(MIN_EXCERPT, free * 18 // 100),
        text=max(MIN_EXCERPT, free * 12 // 100),
        note=MIN_EXCERPT if is_batch else 2 * MIN_EXCERPT,
    )


def rows_of(approval: Approval) -> tuple[Item, ...]:
    """Return the items that have rows: those that wait for a person come first.

    On a notification these are the calls in doubt.
    """
    first = ItemState.IN_DOUBT if approval.is_auto_approved else ItemState.PENDING
    waiting = [item for item in approval.items if item.state is first]
    others = [item for item in approval.items if item.state is not first]
    # What waits comes first, then all are put back in their order: rows must not move
    # under a reviewer's finger when one of them is decided.
    chosen = [*waiting, *others][:MAX_ROWS]
    return tuple(sorted(chosen, key=lambda item: item.index))
