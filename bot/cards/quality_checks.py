"""Render the measurements of reviews: spot checks, and revealed seeded defects."""

from __future__ import annotations

from typing import LiteralString

from keyturn.bot.blocks import (
    Block,
    Message,
    actions,
    box,
    context,
    header,
    rich_text,
    said,
    section,
)
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.listing import call_title
from keyturn.bot.cards.mentions import of_roles
from keyturn.bot.cards.refs import when, who
from keyturn.bot.ids import Action
from keyturn.bot.text import Template, fit, joined, label, spoken, template
from keyturn.gateway.approvals.quality_checks import (
    APPROVED,
    NOTICED,
    WRONG,
    SeededCard,
    took_part,
)
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import SpotCheck
from keyturn.sandbox.blockkit.limits import BLOCKS_IN_MESSAGE

_SEEDED_TITLE = 200

TOLD_APPROVED = template(
    "🧪 This was a seeded defect, and you approved it. No agent asked for it, and "
    "nothing ran. The card says what was wrong."
)
TOLD_NOTICED = template(
    "🧪 Well seen: this was a seeded defect. No agent asked for it, and nothing could "
    "run. The card says what was wrong."
)
NOT_HERE = template(
    "This button does nothing on this card. Please decide: approve, edit, reject or "
    "respond."
)
ENDED = template("This was a seeded defect, and it has ended; nothing was counted.")

_WHAT = template(
    "No agent asked for this call, and nothing could run it. Your policy shows such "
    "cards now and then, to find out whether a mistake is noticed."
)
_HOW = {
    APPROVED: template("A reviewer approved it."),
    NOTICED: template("A reviewer did not approve it."),
}
_NOBODY = template("Nobody answered it in time.")


def ended_card(card: SeededCard, answer: str) -> Message:
    """Return the card after its answer, or after its time is over."""
    return Message(
        (
            header(label("🧪 Seeded defect")),
            context(_HOW.get(answer, _NOBODY)),
            rich_text(box(fit(call_title(card.shown.items[0]), _SEEDED_TITLE))),
            section(_WHAT),
            section(label(f"What was wrong: {card.defect}")),
        ),
        "This card was a seeded defect.",
    )


_AT_ONCE = 2
"""Maximum questions on one card; the next one follows an answer."""

_BLOCKS_OF_QUESTION = 2

_WHAT_FOR = template(
    "Asked of people who took no part in it. Your answer is counted and kept in the "
    "audit log; it undoes nothing."
)

_TITLE = 100
_ASKED = template("🔍 *Spot check:* was this right?")


def spot_checks(frame: Frame, room: int = BLOCKS_IN_MESSAGE) -> list[Block]:
    """Return the pending questions, and for a single call also the answer.

    Args:
        frame: of the card.
        room: blocks left on the card. A question without room appears once the pending
            calls take fewer blocks.
    """
    approval = frame.approval
    most = min(_AT_ONCE, (room - 1) // _BLOCKS_OF_QUESTION)
    waiting = [item for item in approval.items if item.is_to_be_checked][: max(most, 0)]
    blocks = [block for item in waiting for block in _question(frame, item)]
    if waiting:
        blocks.append(context(_WHAT_FOR))
    check = approval.items[0].spot_check
    if not approval.is_batch and check is not None and check.by is not None:
        blocks.append(context(_answer(check)))
    return blocks


def asked_note(approval: Approval, item: Item) -> Message:
    """Return the reply under a card that mentions the people who are asked."""
    roles = item.spot_check.of if item.spot_check else ()
    whom = of_roles(roles, but=took_part(approval, item))
    sentence = joined(" ", [_ASKED, template("Please answer on the card.")])
    blocks = (section(whom.before(sentence)), *_title_of(approval, item))
    return Message(blocks, spoken(sentence))


def answered_note(approval: Approval, item: Item, check: SpotCheck) -> Message:
    """Return the reply with a person's answer."""
    return said(_answer(check), *_title_of(approval, item))


def _title_of(approval: Approval, item: Item) -> list[Block]:
    """Return the title of one of several calls; a single call needs none."""
    if not approval.is_batch:
        return []
    return [rich_text(box(fit(call_title(item), _TITLE)))]


def _answer(check: SpotCheck) -> Template:
    found: LiteralString = "*wrong*" if check.answer == WRONG else "right"
    by = template("")
    if check.by is not None:
        by = template(" ({who}, {at})", who=who(check.by), at=when(check.at_ms))
    return template("🔍 *Spot check:* it was " + found + "{by}.", by=by)


def _question(frame: Frame, item: Item) -> list[Block]:
    n = item.index + 1
    asked = _ASKED
    if frame.approval.is_batch:
        asked = template("🔍 *Spot check of call {n}:* was it right?", n=n)
    return [
        section(asked),
        actions(
            frame.button(item.index, Action.CHECK_RIGHT),
            frame.button(item.index, Action.CHECK_WRONG),
        ),
    ]
