"""Body of a webhook: the news that a thread of the receiving program has a decision.

It contains only ids: no tool, no arguments, no decision. The receiver asks the gateway,
with its API key, so a forged, stored or intercepted message reveals nothing and starts
nothing.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime

from keyturn.gateway.protocol.records import Record

DECIDED: Literal["approval.decided"] = "approval.decided"
"""A call of the thread was approved, refused, answered, or ended in another way."""

TEST: Literal["webhook.test"] = "webhook.test"
"""A test message by an operator."""

MOST_BYTES = 16 * 1024
"""Upper bound of the size of messages."""


class News(Record, extra="ignore"):
    """The agent, the thread and the approval of a decision."""

    agent: str = ""
    thread: str = ""
    approval: str = ""


class WebhookBody(Record, extra="ignore"):
    """The body of a message; ``timestamp`` is when it happened."""

    type: str
    timestamp: AwareDatetime
    data: News


def body_of(kind: str, news: News, at_ms: int) -> bytes:
    """Return the body of a message, the same bytes each time."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    value = {
        "type": kind,
        "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "data": news.model_dump(),
    }
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
