"""Rendering context of one card: record, keys, time and size budget.

Slack refuses a message whose blocks contain too much text, by an unpublished rule;
`keyturn.bot.blocks.TEXT_BUDGET` stays below it. Each call gets an equal share. A call
that fits in its share is therefore shown whole, even if the others are long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, LiteralString

from keyturn.bot.blocks import TEXT_BUDGET, Block, button, option, select
from keyturn.bot.cards.listing import call_title
from keyturn.bot.ids import Action, seal
from keyturn.bot.text import MIN_EXCERPT, Plain, label, untrusted
from keyturn.gateway.approvals.gestures import MAX_ITEMS
from keyturn.gateway.approvals.record import Approval, Item, is_collected
from keyturn.gateway.approvals.timing import is_late, is_over

TABLE_FROM = MAX_ITEMS + 1
"""Minimum number of calls of one tool that are shown as a table instead of rows."""

# Text around the rows; and per row the sentence, the reasons, the warnings and the
# buttons with their questions. A test measures the longest case.
_HEAD_AND_TAIL = 2_200
_HEAD_AND_TAIL_OF_BATCH = 2_345
_ROW_TEXT = 1_005
_ROW_TEXT_IN_BATCH = 580
_HEAD_AND_TAIL_AUTO_APPROVED = 2_930
_INQUIRIES = 100
"""Characters for the line about questions to the requester on the card of a batch."""
_TOTALS = 500
"""Characters for totals on the card of a few calls: lines, and a button's question."""


_TEXTS: dict[Action, LiteralString] = {
    Action.APPROVE: "Approve",
    Action.APPROVE_ALL: "Approve all",
    Action.APPROVE_ROW: "Approve",
    Action.EDIT: "Edit",
    Action.EDIT_WORDS: "Edit",
    Action.REJECT: "Reject",
    Action.REJECT_ALL: "Reject all…",
    Action.REJECT_WORDS: "Reject",
    Action.RESPOND: "Respond",
    Action.RESPOND_WORDS: "Respond",
    Action.ALLOW_SIMILAR: "Allow similar…",
    Action.VIEW_ALL: "Full details",
    Action.RECONCILE_NOTE: "Add a note…",
    Action.CHOOSE: "Choose…",
    Action.CHOOSE_EDIT: "Edit",
    Action.TAKE: "I'm on it",
    Action.SNOOZE: "Snooze for an hour",
    Action.SNOOZE_OVERNIGHT: "Snooze until tomorrow, 9:00",
    Action.EXTEND: "More time",
    Action.ASK_REQUESTER: "Ask the requester…",
    Action.ASK_AGAIN: "Ask again",
    Action.ANSWER: "Answer",
    Action.SKIP: "Skip",
    Action.REVOKE: "Revoke",
    Action.REPORT: "Report",
    Action.FREEZE_TOOL: "Freeze tool",
    Action.CHECK_RIGHT: "It was right",
    Action.CHECK_WRONG: "It was wrong",
}
_PRIMARY = {Action.APPROVE, Action.APPROVE_ALL, Action.ANSWER}
_DANGER = {
    Action.REJECT,
    Action.REJECT_ALL,
    Action.REJECT_WORDS,
    Action.RECONCILE_RERUN,
    Action.REVOKE,
}


@dataclass(frozen=True, slots=True)
class TextBudget:
    """Maximum characters of each part of one call's row.

    Attributes:
        title: the policy's description.
        row: all parts of a row that depend on the call.
        text: each text by a person or tool, and each edit.
        note: each small note: reasons, warnings, a button's question.
    """

    title: int
    row: int
    text: int
    note: int


@dataclass(frozen=True, slots=True)
class Frame:
    """Context for rendering one card.

    Attributes:
        approval: the record it shows.
        key: the bot's sealing key.
        team: the workspace it is posted in.
        now_ms: the time, in Unix milliseconds.
        sent: people whose direct messages show the same card.
        card_in: on a direct message, the channel of the original card.
        conversation: address of the Slack message with the request to the agent; "" if
            there is none.
        is_crowded: the calls have more notes than fit, so only Full details show the
            words of people and tools.
        is_usual: people always approved calls like the card's, so that it offers to
            allow similar ones beside its usual buttons.
    """

    approval: Approval
    key: bytes
    team: str
    now_ms: int
    sent: tuple[str, ...] = ()
    card_in: str = ""
    conversation: str = ""
    is_crowded: bool = False
    is_usual: bool = False

    @property
    def is_late(self) -> bool:
        """Return whether the time to decide is over for all pending calls."""
        return is_over(self.approval, self.now_ms)

    def can_decide(self, item: Item) -> bool:
        """Return whether a call is pending and its time is not over."""
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
        *,
        text: str = "",
        is_primary: bool = False,
        confirm: Block | None = None,
    ) -> Block:
        """Return a button about one call, or the whole card, sealed for its action.

        Screen readers read its text and the call.

        Args:
            index: of the call.
            action: what the button does.
            text: other words on the button, trusted except for names of tools.
            is_primary: whether it is the main button of its row.
            confirm: the question that has to be answered first.
        """
        text = text or _TEXTS[action]
        style: Literal["primary", "danger"] | None = None
        if is_primary or action in _PRIMARY:
            style = "primary"
        elif action in _DANGER:
            style = "danger"
        return button(
            action,
            untrusted(text),
            value=self.value(index, action),
            style=style,
            accessibility_label=untrusted(text + self._call_name(index)),
            confirm=confirm,
        )

    def _call_name(self, index: int | None) -> str:
        """Return the call for screen readers: " 2: Refund €23.00"."""
        if index is None:
            return ""
        nth = f" {index + 1}" if self.approval.is_batch else ""
        return f"{nth}: {call_title(self.approval.items[index])}"

    def menu(
        self, items: Iterable[Item], action: Action, *, prefix: str, placeholder: Plain
    ) -> Block:
        """Return a menu of calls; each is named by ``prefix`` and its number."""
        options = [
            option(label(f"{prefix}{item.index + 1}"), self.value(item.index, action))
            for item in items
        ]
        return select(action, options, placeholder=placeholder)


def is_table(approval: Approval) -> bool:
    """Return whether the card shows the calls of an approval as a table."""
    if is_collected(approval):
        return True
    is_of_one_tool = len({item.tool for item in approval.items}) == 1
    return len(approval.items) >= TABLE_FROM and is_of_one_tool


def text_budget(approval: Approval) -> TextBudget:
    """Return the text budget of one row on the card of this approval."""
    is_batch = approval.is_batch
    fixed = _HEAD_AND_TAIL_OF_BATCH if is_batch else _HEAD_AND_TAIL
    if approval.is_auto_approved:
        fixed = _HEAD_AND_TAIL_AUTO_APPROVED
    free = TEXT_BUDGET - fixed
    free -= _TOTALS if is_batch and any(one.totals for one in approval.items) else 0
    free -= _INQUIRIES if approval.inquiries and is_batch else 0
    free = free // len(approval.items) - (_ROW_TEXT_IN_BATCH if is_batch else _ROW_TEXT)
    return TextBudget(
        title=max(MIN_EXCERPT, free * 6 // 100),
        row=free,
        text=max(MIN_EXCERPT, free * 12 // 100),
        note=MIN_EXCERPT if is_batch else 2 * MIN_EXCERPT,
    )


def shares(room: int, lengths: Sequence[int]) -> list[int]:
    """Divide a room: short texts get their whole length, long ones share the rest."""
    given = [0] * len(lengths)
    for done, place in enumerate(sorted(range(len(lengths)), key=lengths.__getitem__)):
        fair = max(0, room) // (len(lengths) - done)
        given[place] = min(lengths[place], fair)
        room -= given[place]
    return given
