"""Say whether the gateway works, and what is missing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.service.process_check import Registration, unserved
from twokey.gateway.store.store import Store

MOST_SKEW_S = 5.0
"""How far this machine's clock may be from the store's; people read times on cards."""

Readiness = Callable[[], Awaitable[tuple[list[str], dict[str, object]]]]
"""Returns what keeps the gateway from working, and what else is worth knowing."""


async def readiness(
    store: Store,
    tenant: str,
    registration: Registration | None,
    *,
    wall_clock_s: Callable[[], float] = time.time,  # noqa: TID251 - it is what is checked
) -> tuple[list[str], dict[str, object]]:
    """Return the problems of a gateway, empty when it is ready, and other facts.

    Args:
        store: it works on.
        tenant: whose agents it serves.
        registration: of this process among the others; it says what does not fit.
        wall_clock_s: Unix seconds, by this machine.
    """
    keys = store.keys_of_tenant(tenant)
    try:
        now_ms = await store.conn.now_ms(keys.outbox)
    except StoreUnavailable as error:
        return [f"The store does not answer: {error}"], {}
    problems: list[str] = []
    skew_s = wall_clock_s() - now_ms / 1000
    if abs(skew_s) > MOST_SKEW_S:
        problems.append(
            f"The clock of this machine is {abs(skew_s):.0f} s "
            f"{'ahead of' if skew_s > 0 else 'behind'} the store's; set it by NTP."
        )
    if registration is not None and registration.problem:
        problems.append(registration.problem)
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
