"""The short id of an approval: what people read on cards and type."""

from __future__ import annotations

SHORT_CHARS = 8
"""How many characters it has."""


def short_id(approval_id: str) -> str:
    """Return the first characters of the random part of an approval's id.

    Two approvals may have one, so it finds approvals and never names one in a record.
    """
    # As `short_key` in prelude.lua, by which the store finds the approvals.
    return approval_id.rpartition("_")[2][:SHORT_CHARS]
