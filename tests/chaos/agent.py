"""A slow agent whose tools write down every effect.

Each effect is one line in a file that all processes share: the tool, the order, and the
idempotency key. An order names one requested call, so two lines about one order are one
effect too many, under any key.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.tools import tool
from langgraph.pregel import Pregel

from keyturn.agent import ApprovalMiddleware, grant, guarded
from tests.resume.sample_tools import obedient

EFFECTS = "CHAOS_EFFECTS"
AGENT = "shop"
SLOW_S = 0.3

POLICY = """
version: 1
defaults: {{tier: approve, expires_in: {expires}, channel: C0APPROVALS,
  needs: [U0ANA, U0BEN]}}
protect:
  {{requests_per_10m: 10000, pending_per_agent: 10000, flood_per_10m: 10000}}
tools:
  refund: {{tier: {refund}}}
  email: {{tier: approve, idempotent: true}}
  ping: {{tier: notify}}
  count: {{tier: auto}}
"""


def _pause() -> float:
    return random.uniform(0.0, SLOW_S)  # noqa: S311 - no secret


def write(name: str, order: str) -> None:
    """Take effect: one line, in one append."""
    line = f"{name} {order} {grant().idempotency_key}\n"
    file = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def effects(path: Path) -> list[tuple[str, str, str]]:
    """Return every effect: tool, order and key."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [cast("tuple[str, str, str]", tuple(line.split())) for line in lines]


@tool
def refund(order: str) -> str:
    """Give money back."""
    time.sleep(_pause())
    write("refund", order)
    time.sleep(_pause())
    return f"refund {order}"


@tool
async def email(order: str) -> str:
    """Send a message."""
    await asyncio.sleep(_pause())
    write("email", order)
    await asyncio.sleep(_pause())
    return f"email {order}"


@tool
async def ping(order: str) -> str:
    """Ping; a channel is notified."""
    await asyncio.sleep(_pause())
    write("ping", order)
    await asyncio.sleep(_pause())
    return f"ping {order}"


@tool
def count(order: str) -> str:
    """Count."""
    time.sleep(_pause())
    write("count", order)
    time.sleep(_pause())
    return f"count {order}"


def graph() -> Pregel[Any, Any, Any, Any]:
    """Make the agent."""
    make = cast("Callable[..., Pregel[Any, Any, Any, Any]]", create_agent)
    return make(
        obedient(lambda: asyncio.sleep(_pause())),
        tools=[guarded(refund), guarded(email), guarded(ping), guarded(count)],
        middleware=[ApprovalMiddleware(AGENT)],
    )
