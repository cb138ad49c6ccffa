"""Idempotency keys: attempts at one write that share a key.

The gateway keeps the answer to a write for a while under the key that came with it, so
that an attempt whose answer was lost gets the first one's answer. What is retried
belongs inside one `one_write`; another question, even of the same words, does not.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

HEADER = "Idempotency-Key"

_current: ContextVar[str] = ContextVar("twokey_idempotency_key", default="")


@contextmanager
def one_write() -> Generator[None]:
    """Let all attempts inside the block be one write."""
    token = _current.set(uuid.uuid4().hex)
    try:
        yield
    finally:
        _current.reset(token)


def key_of_write() -> str:
    """Return the key of the write around this code, a new one outside of any."""
    return _current.get() or uuid.uuid4().hex
