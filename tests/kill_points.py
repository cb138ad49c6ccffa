"""End a process by kill -9 at a chosen one of its steps."""

from __future__ import annotations

import os
import signal
from typing import Any


def cut(owner: Any, name: str, left: list[int], *, is_async: bool = False) -> None:
    """Replace a function by one that ends the process at the chosen call."""
    plain = getattr(owner, name)

    def step() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    def run(*args: Any, **named: Any) -> Any:
        step()
        return plain(*args, **named)

    async def run_async(*args: Any, **named: Any) -> Any:
        step()
        return await plain(*args, **named)

    setattr(owner, name, run_async if is_async else run)
