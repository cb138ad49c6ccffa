"""Wait for the job of a handover, and find it where the answer was lost."""

from __future__ import annotations

import asyncio
from typing import cast

from twokey.gateway.clock import now_s
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store.connection import Connection, Reply, number, text
from twokey.gateway.store.handover import Delivered, Handover, Unknown
from twokey.gateway.store.jobs import Delivery, Given
from twokey.gateway.store.store import Store

_ASKED_AFTER_S = (0.5, 1.0, 2.0, 4.0)
"""When it is asked again who has a lease, where the store does not answer."""


async def given(store: Store, handover: Handover) -> Delivery | None:
    """Wait for the answer to a handover; None: the job is read from the stream."""
    answer = await handover.answer
    pauses = iter(_ASKED_AFTER_S)
    while isinstance(answer, Unknown):
        try:
            answer = await _delivered(store.conn, handover)
        except StoreUnavailable:
            # Nobody is given the job until it is as old as a lease lives.
            pause_s = next(pauses, None)
            if pause_s is None or now_s() + pause_s > handover.ends_s:
                return None
            await asyncio.sleep(pause_s)
    if answer is None:
        return None
    lease = store.threads.leases.taken(
        handover.keys,
        handover.lease,
        handover.token,
        fence=answer.fence,
        ends_s=handover.ends_s,
    )
    return Delivery(answer.job, handover.job, Given(lease, handover.known))


async def _delivered(conn: Connection, handover: Handover) -> Delivered | None:
    """Ask who has the lease, where the answer of the script was lost."""
    reply = await conn.command("HMGET", handover.lease, "token", "fence", "job")
    token, fence, job = cast("list[Reply]", reply)
    if text(token) != handover.token:
        return None
    return Delivered(text(job), number(fence))
