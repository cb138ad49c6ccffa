"""Post requests to the bot with Slack's signature, or with an invalid one."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import time
from collections.abc import Mapping
from urllib.parse import urlencode

import aiohttp

FORM = "application/x-www-form-urlencoded"


def signed_headers(
    secret: str, body: bytes, *, timestamp: str | None = None
) -> dict[str, str]:
    """Return the headers under which Slack would send this body now."""
    at = timestamp or str(int(time.time()))  # noqa: TID251 - Slack's clock
    base = b"v0:" + at.encode() + b":" + body
    digest = hmac.new(secret.encode(), base, hashlib.sha256).hexdigest()
    return {
        "Content-Type": FORM,
        "X-Slack-Request-Timestamp": at,
        "X-Slack-Signature": f"v0={digest}",
    }


def interaction(payload: Mapping[str, object]) -> bytes:
    """Return the form body of an interaction."""
    return urlencode({"payload": json.dumps(payload)}).encode()


async def post(url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
    """Post a body; return status and text of the answer."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=io.BytesIO(body), headers=dict(headers)) as response,
    ):
        return response.status, await response.text()


async def post_signed(url: str, secret: str, body: bytes, *, kind: str = FORM) -> int:
    """Post a body that Slack signed just now; return the status."""
    headers = signed_headers(secret, body) | {"Content-Type": kind}
    status, _ = await post(url, headers, body)
    return status
