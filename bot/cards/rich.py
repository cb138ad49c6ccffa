"""Build rich text blocks from several boxes and the text between them."""

from __future__ import annotations

from twokey.bot.blocks import preformatted, rich_text
from twokey.bot.objects import Block
from twokey.bot.wording import Untrusted, untrusted
from twokey.sandbox.blockkit import JSON


def box(text: str | Untrusted) -> list[JSON]:
    """Return text of strangers as a box of fixed width."""
    shown = text if isinstance(text, Untrusted) else untrusted(text)
    return _inner(preformatted(shown))


def line(*parts: Block) -> list[JSON]:
    """Return a line of ours from `words`, `bold` and `mention` parts."""
    return _inner(rich_text(*parts))


def stacked(*parts: list[JSON], block_id: str) -> Block:
    """Return one rich text block of boxes and lines, from top to bottom."""
    elements = [element for part in parts for element in part]
    return {"type": "rich_text", "block_id": block_id, "elements": elements}


def _inner(block: Block) -> list[JSON]:
    elements = block["elements"]
    return [*elements] if isinstance(elements, list) else []
