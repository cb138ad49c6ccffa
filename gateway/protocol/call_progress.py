"""Wire messages about calls of tier ``auto``, which have no record."""

from __future__ import annotations

from typing import Literal

from twokey.gateway.protocol.records import Record, Result
from twokey.gateway.protocol.wire import TurnRef

ProgressVerb = Literal["begin", "enter", "give_back"]
"""``begin`` asks to run a call, ``enter`` says that an agent began inside it, and
``give_back`` that it paused: it may run again."""


class CallProgress(Record):
    """What happens to a call that runs without a record: one step of it."""

    verb: ProgressVerb
    ref: TurnRef
    tool: str
    tool_call_id: str


class CallBegun(Record):
    """Whether a call may run; else its stored result, None when nobody knows it.

    ``keeps_result`` is False where the gateway would not keep what the call returns:
    then the end of one that went well need not be told.
    """

    may_run: bool = True
    result: Result | None = None
    keeps_result: bool = True


class CallEnd(Record):
    """How a call without a record ended.

    ``is_over`` is False when the call raised: it may be run again. The gateway counts
    a failure of those alone that it let run.
    """

    ref: TurnRef
    tool: str
    tool_call_id: str
    result: Result
    is_over: bool = True
