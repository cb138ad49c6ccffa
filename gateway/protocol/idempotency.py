"""Idempotency keys: attempts at one write that share a key.

The gateway keeps the answer to a write for a while under the key that came with it, so
that an attempt whose answer was lost gets the first one's answer. What is retried
belongs inside one `one_write`; another question, even of the same words, does not.
"""

from __future__ import annotations

import uuid
from contextvars import ContextVar

from keyturn.gateway.context_values import Inside

HEADER = "Idempotency-Key"

# Attempts that copied the context share the write, and so its key.
_current: ContextVar[dict[str, str] | None] = ContextVar(
    "keyturn_idempotency_key", default=None
)


def one_write(write: dict[str, str] | None = None) -> Inside[dict[str, str] | None]:
    """Give all attempts inside the block the same idempotency key.

    Args:
        write: shared with other blocks of the same write, and holds its key under
            `HEADER` once it was used; by default the block is a write of its own.
    """
    return Inside(_current, {} if write is None else write)


def key_of_write() -> str:
    """Return the key of the write around this code, a new one outside of any."""
    write = _current.get()
    # One step, so that two attempts at once cannot make two keys.
    return (write if write is not None else {}).setdefault(HEADER, uuid.uuid4().hex)


def attempt_of(owner: str) -> str:
    """Return the name of the attempt that claims a call in this write.

    An owner that claims again in another write is another attempt: only a request
    that is repeated with its key, because its answer was lost, is granted again.
    """
    # A key has no blank, so two pairs never get one name.
    return f"{owner} {key_of_write()}"
