"""A tool that pays and records the payment, in a program with an embedded gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from langchain_core.tools import tool

from keyturn.gateway.embed import Keyturn
from keyturn.gateway.store.store import Store
from tests.resume.resume_stack import AT_ONCE, RULES

RUNS: list[str] = []
"""The orders that were paid."""


@asynccontextmanager
async def paying_program(store: Store, folder: Path) -> AsyncGenerator[Keyturn]:
    """Give the gateway of a program that has paid nothing yet."""
    RUNS.clear()
    at = {"url": store.conn.url, "data_dir": folder, "retries": AT_ONCE}
    async with Keyturn(policy=RULES, **cast("dict[str, Any]", at)) as one:
        yield one


@tool
def pay(order: str) -> str:
    """Pay."""
    RUNS.append(order)
    return f"paid {order}"
