"""One Slack message: blocks, fallback text and metadata."""

from __future__ import annotations

from dataclasses import dataclass

from twokey.bot.objects import Block


@dataclass(frozen=True, slots=True)
class Message:
    """Blocks, the text that screen readers and notifications read, and metadata.

    ``text`` holds ids, tier, state and expiry, and nothing that anybody else wrote.
    Every app in the workspace can read ``metadata``: it holds ids only.
    """

    blocks: tuple[Block, ...]
    text: str
    metadata: Block | None = None
