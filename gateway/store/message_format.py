"""Tell events and jobs that a newer version wrote from what nobody can read."""

from __future__ import annotations

from pydantic import ValidationError

from twokey.gateway.protocol.records import Record

MESSAGE_FORMAT = 2
"""Number of the format of events and jobs.

It rises, as `twokey.gateway.store.codec.FORMAT` does, with every change that an older
version would refuse. From 2 on it stands in them as ``format``: without it, it is 1.
"""


class _Numbered(Record, extra="ignore"):
    format: int = 1


def is_newer(body: bytes) -> bool:
    """Return whether this is an event or a job of a newer version."""
    try:
        return _Numbered.model_validate_json(body).format > MESSAGE_FORMAT
    except ValidationError:
        return False
