"""Say whether the gateway works, and what is missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import BaseModel

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.service.process_check import Registration, clock_problem, unserved
from keyturn.gateway.store.store import Store

Readiness = Callable[[], Awaitable[tuple[list[str], dict[str, object]]]]
"""Returns what keeps the gateway from working, and what else is worth knowing."""


class ReadinessView(BaseModel, extra="allow"):
    """The answer of `/readyz`: whether the gateway works, and what is missing."""

    ready: bool
    problems: list[str] = []


async def readiness(
    store: Store,
    tenant: str,
    registration: Registration | None,
) -> tuple[list[str], dict[str, object]]:
    """Return the problems of a gateway, empty when it is ready, and other facts.

    Args:
        store: it works on.
        tenant: whose agents it serves.
        registration: of this process among the others; it says what does not fit.
    """
    keys, clock = store.keys_of_tenant(tenant), store.conn.clock
    asked_s = clock.asking()
    try:
        now_ms = await store.conn.now_ms(keys.outbox)
    except StoreUnavailable as error:
        return [f"The store does not answer: {error}"], {}
    problems: list[str] = []
    clock.answered(now_ms / 1000, asked_s)
    if registration is not None:
        problems += registration.problems
    elif problem := clock_problem(store):
        problems.append(problem)
    facts: dict[str, object] = {}
    security = {str(kind): count for kind, count in store.security.counts.items()}
    if security:
        facts["security_events"] = security
    try:
        others = await unserved(store, keys)
    except (StoreUnavailable, ValueError):
        others = []
    if others:
        facts["unserved"] = others
    return problems, facts
