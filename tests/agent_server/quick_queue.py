"""Make the queue of `langgraph dev` check for runs 50 times a second, not twice.

Nothing else of the server is changed. It would only make the tests four times as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from importlib import import_module
from typing import Any

WAIT_S = 0.02


class _Quick:
    """The module asyncio, with short pauses."""

    def __getattr__(self, name: str) -> Any:
        """Return what asyncio has."""
        return getattr(asyncio, name)

    @staticmethod
    def sleep(seconds: float) -> Coroutine[Any, Any, None]:
        """Pause for a short time at most."""
        return asyncio.sleep(min(seconds, WAIT_S))


def shorten_pauses() -> None:
    """Change the queue of this process."""
    vars(import_module("langgraph_runtime_inmem.ops"))["asyncio"] = _Quick()
