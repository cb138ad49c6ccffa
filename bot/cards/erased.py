"""Build what stands in Slack in place of a card whose approval was erased."""

from __future__ import annotations

from twokey.bot.blocks import Message, section
from twokey.bot.text_types import template

_TEXT = "This call was erased: its arguments, results and reasons are kept no longer."


def erased() -> Message:
    """Return the message that replaces a card and each copy of it."""
    return Message((section(template(_TEXT)),), "An erased approval")
