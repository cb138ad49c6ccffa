"""What a webhook tells a program: that one of its threads has a decision.

It says where to look and nothing else: no tool, no arguments, no decision. The
receiver asks the gateway, with its API key, so a message that somebody forged, kept or
read gives nothing away and lets nothing run.
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
"""An operator asks whether messages arrive."""

MOST_BYTES = 16 * 1024
"""No message is as long as that."""


class News(Record, extra="ignore"):
    """Which thread, of which agent, and because of which approval."""

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
