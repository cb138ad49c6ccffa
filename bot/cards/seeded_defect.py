"""Reveal that a card was a seeded defect: on the card, and to who answered it."""

from __future__ import annotations

from keyturn.bot.blocks import Message, box, context, header, rich_text, section
from keyturn.bot.cards.listing import call_title
from keyturn.bot.text import fit, label, template
from keyturn.gateway.approvals.seeded import APPROVED, NOTICED, SeededCard

_TITLE = 200

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
    APPROVED: template("Somebody approved it."),
    NOTICED: template("Somebody did not approve it."),
}
_NOBODY = template("Nobody answered it in time.")


def ended_card(card: SeededCard, answer: str) -> Message:
    """Return what the card becomes once it was answered, or was not in time."""
    return Message(
        (
            header(label("🧪 Seeded defect")),
            context(_HOW.get(answer, _NOBODY)),
            rich_text(box(fit(call_title(card.shown.items[0]), _TITLE))),
            section(_WHAT),
            section(label(f"What was wrong: {card.defect}")),
        ),
        "This card was a seeded defect.",
    )
