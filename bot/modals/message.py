"""Modal that only shows a message."""

from __future__ import annotations

from twokey.bot.blocks import modal, section
from twokey.bot.ids import View
from twokey.bot.objects import Block
from twokey.bot.wording import Plain, Template, label


def notice(title: Plain, text: Template | Plain) -> Block:
    """Return a modal of one paragraph.

    Args:
        title: 24 characters at most.
        text: what to say, such as `twokey.bot.cards.outcome.explained` of an outcome.
    """
    return modal(title, [section(text)], callback_id=View.NOTICE, close=label("Close"))
