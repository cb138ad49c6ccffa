"""See what large JSON values are walked in the thread of an event loop."""

from __future__ import annotations

import threading
import traceback
from typing import Any

import pytest

from keyturn.gateway.protocol import strict_json
from keyturn.gateway.protocol.work import is_large


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the checks of large values in this thread, as they happen.

    Each hash of a value, and each read of its hash, checks the value first.
    """
    here, found = threading.get_ident(), list[str]()
    walk = strict_json._accept  # pyright: ignore[reportPrivateUsage] - every level

    def call(value: Any, pointer: Any, depth: int) -> Any:
        if not depth and threading.get_ident() == here and is_large([value]):
            callers = traceback.extract_stack(limit=6)[:-1]
            found.append(" > ".join(one.name for one in callers))
        return walk(value, pointer, depth)

    monkeypatch.setattr(strict_json, "_accept", call)
    return found
