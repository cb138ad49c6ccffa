"""Describe a notice: what an agent ran without asking, and what people said of it.

A turn's calls of tier ``notify`` run at once. A notice shows them afterwards: with
their arguments as they were asked for, how each ended as far as the agent told, and
who reported it. It decides nothing.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from twokey.gateway.approvals.record import approval_of, item_id
from twokey.gateway.protocol.records import Person, Record
from twokey.gateway.protocol.strict_json import JsonObject


class CallState(StrEnum):
    """Where a call stands that runs unasked, as far as its agent told."""

    STARTED = "started"
    EXECUTED = "executed"
    FAILED = "failed"


class NoticedCall(Record):
    """One call on a notice; ``summary`` is what the tool answered: untrusted text."""

    index: int
    tool: str
    tool_call_id: str
    args: JsonObject
    reasons: tuple[str, ...] = ()
    description: str = ""
    redact: tuple[str, ...] = ()
    state: CallState = CallState.STARTED
    changed_at_ms: int = 0
    summary: str = ""


class Remark(Record):
    """What somebody reported of a notice; ``text`` is theirs and may be empty."""

    by: Person
    text: str = ""
    at_ms: int = 0


class Notice(Record):
    """What one turn of an agent ran without asking, on one message in one channel.

    ``rev`` rises with every change. All times are Unix milliseconds of the store.
    """

    id: str
    tenant: str
    agent: str
    thread: str
    ns: str = ""
    message_id: str
    channel: str
    rev: int = 1
    created_at_ms: int = 0
    requester: Person | None = None
    policy_digest: str
    calls: tuple[NoticedCall, ...] = Field(min_length=1)
    remarks: tuple[Remark, ...] = ()


def row_id(notice: str, index: int) -> str:
    """Return the id of a call on a notice; it carries the notice's own."""
    return item_id(notice, index)


def notice_of(row: str) -> tuple[str, int]:
    """Split the id of a call on a notice into the notice's id and its index.

    Raises:
        ValueError: when the text is no such id.
    """
    return approval_of(row)
