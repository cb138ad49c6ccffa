"""Idempotency keys: attempts at one write that share a key.

The gateway keeps the answer to a write for a while under the key that came with it, so
that an attempt whose answer was lost gets the first one's answer. What is retried
belongs inside one `one_write`; another question, even of the same words, does not.
"""

from __future__ import annotations

import uuid
from contextvars import ContextVar

from twokey.gateway.context_values import Inside

HEADER = "Idempotency-Key"

# Attempts that copied the context share the write, and so its key.
_current: ContextVar[dict[str, str] | None] = ContextVar(
    "twokey_idempotency_key", default=None
)


def one_write() -> Inside[dict[str, str] | None]:
    """Let all attempts inside the block be one write."""
    # Its key is made when it is asked for: a gateway in this process takes none.
    return Inside(_current, {})


def key_of_write() -> str:
    """Return the key of the write around this code, a new one outside of any."""
    write = _current.get()
    # One step, so that two attempts at once cannot make two keys.
    return (write if write is not None else {}).setdefault(HEADER, uuid.uuid4().hex)
