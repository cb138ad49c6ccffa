"""Repeat a write that lost its comparison, with pauses that grow."""

from __future__ import annotations

import asyncio
import random

# A lost comparison nearly always means that somebody else's write went through: sixteen
# in a row are a crowd and no livelock, and the person clicks again.
ATTEMPTS = 16
BUSY = "Too many changed this at once; nothing of yours was recorded. Please try again."

_PAUSE_S = 0.03
"""How much the pause before another attempt grows with each, at most: 3 s in all."""


async def pause_before(attempt: int) -> None:
    """Pause before an attempt, counted from 0; not before the first two."""
    # Another process that writes one call after the other is faster than who has to
    # read first, until it is through.
    if attempt > 1:
        await asyncio.sleep(random.uniform(0, _PAUSE_S * attempt))  # noqa: S311
