"""Describe the facts beside the call that rules read: time, totals, who, how often."""

from __future__ import annotations

from pydantic import Field

from twokey.gateway.protocol.records import Record


class Facts(Record):
    """What is known of the moment in which a call is judged.

    Attributes:
        now_ms: Unix milliseconds of the store's clock.
        windows: name of a window to its total in millionths, this call included.
        requester: Slack id of the person who asked the agent; empty when unknown.
        requests_10m: calls of this agent that were put to people in the last ten
            minutes, this one included.
        failures_1h: executions of this agent that failed in the last hour.
        rejections_in_row: calls of this agent rejected since one was last approved.
        problems: why a total is not known, as sentences of ours; each one raises.
    """

    now_ms: int
    windows: dict[str, int] = Field(default_factory=dict)
    requester: str = ""
    requests_10m: int = Field(default=0, ge=0)
    failures_1h: int = Field(default=0, ge=0)
    rejections_in_row: int = Field(default=0, ge=0)
    problems: tuple[str, ...] = ()
