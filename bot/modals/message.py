"""Modal that only shows a message."""

from __future__ import annotations

from twokey.bot.blocks import Block, Plain, Template, label, modal, section
from twokey.bot.ids import View


def notice(title: Plain, text: Template | Plain) -> Block:
    """Return a modal of one paragraph.

    Args:
        title: 24 characters at most.
        text: what to say, such as `twokey.bot.cards.outcome.explained` of an outcome.
    """
    return modal(title, [section(text)], callback_id=View.NOTICE, close=label("Close"))
